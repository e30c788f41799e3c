"""Rules of the repository that no other tool checks: what may stand in files, and what must exist beside what."""

import ast
import importlib.metadata
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import headrace

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "headrace"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

# Written in pieces, so that this file does not break its own rule.
_INDEX_HOSTS = (
    "pypi" + ".org",
    "python" + "hosted.org",
    "npmjs" + ".org",
    "npmjs" + ".com",
    "conda" + ".anaconda.org",
)
_MACHINE_FOLDERS = ("root", "work", "opt/wheels", "opt/pypi", "home/[a-z]+", "Users/[A-Za-z]+")
# A path begins where no word, dot or slash stands before it: `https://host/work/` is none.
_MACHINE_PATH = re.compile(rf"(?<![\w./:$}}-])/(?:{'|'.join(_MACHINE_FOLDERS)})/")

_EXTRAS_WITHOUT_DOOR = {
    "all": "names other extras",
    "demo": "for examples/demo only",
    "examples": "for examples/serving and examples/sequences only",
    "dev": "tools and tests only",
    "http2": "a parser that uvicorn looks up by its name",
}

# Extras that no other tool can stand beside, with the constraints of the environment that they have to themselves.
_EXTRAS_APART = {"mlserver": "constraints-mlserver.txt"}

_SEVERAL_DOORS = {
    "apache_beam": "handlers for a pipeline of the user's, and the pipeline of a transform: either is used without the other",
    "uvicorn": "its server, and its protocol, which is imported where it is extended",
    "grpc": "a server's, which listens, and a client's, which calls: whoever only asks imports no server",
    "boto3": "credentials of the object store and regions of its buckets, and AWS's own queues and notifications",
    "redis": "a dispatcher of jobs, and a store of checkpoints: either is used without the other",
    "httpx": "the guarded client of addresses that others name, and the client of our own API",
}

# Modules of src without a test file of their own name, and why. A key that ends in / covers a whole room.
_UNMIRRORED: dict[str, str] = {
    "__init__.py": "tests/test_public_face.py",
    "__main__.py": "three lines; tests/cli runs it",
    "cli/groups.py": "tests/cli/test_models.py, test_jobs.py and test_queues.py leave `list` out",
    "cli/job_results.py": "tests/cli/test_submit.py and test_jobs.py print, save and wait for results",
    "cli/job_server.py": "tests/cli/test_submit.py and test_jobs.py give its options, and end as it says",
    "jobs/client/aio.py": "tests/jobs/client/test_sync.py puts both clients to the same questions",
    "jobs/client/calls.py": "tests/jobs/client/test_sync.py gives addresses, right and wrong, and meets servers that are gone",
    "jobs/client/faces.py": "tests/jobs/client/test_sync.py saves results, and asks of queues",
    "server/jobs/api.py": "tests/server/jobs/test_job_routes.py waits, reads bodies and is refused through it",
    "server/jobs/models.py": "tests/server/jobs/test_app.py holds answers against them",
    "server/jobs/submitted.py": "tests/server/jobs/test_job_routes.py and test_vendor.py submit through it",
    "app/jobs.py": "tests/integration/test_jobs_up.py, test_jobs_told.py and test_jobs_tenants.py run all of it as processes",
    "cli/job_options.py": "tests/integration/test_jobs_up.py and test_jobs_workers.py give them as a user would",
    "cli/up.py": "tests/integration/test_jobs_up.py types it as a user would",
    "cli/work.py": "tests/integration/test_jobs_workers.py types it as a user would",
    "cli/connecting.py": "tests/cli/test_infer.py and test_models.py give its options, and end as it says",
    "engine/life.py": "tests/engine/test_engine.py, test_engine_ask.py and test_streams.py begin, stop and drop lives",
    "jobs/ledgers/beat.py": "tests/conformance/test_job_ledgers.py runs the whole suite over both databases",
    "jobs/ledgers/changes.py": "tests/conformance/test_job_ledgers.py, the same",
    "jobs/ledgers/deciding.py": "tests/conformance/test_job_ledgers.py, the same",
    "jobs/ledgers/dialect.py": "strings; tests/conformance/test_job_ledgers.py runs statements of all of them",
    "jobs/ledgers/looking.py": "tests/conformance/test_job_ledgers.py, the same",
    "jobs/ledgers/queues.py": "tests/conformance/test_job_ledgers.py, the same",
    "jobs/ledgers/reading.py": "tests/conformance/test_job_ledgers.py, the same",
    "jobs/ledgers/schema.py": "tables; tests/jobs/ledgers/test_migrations.py compares them with those there are",
    "jobs/ledgers/sql.py": "tests/conformance/test_job_ledgers.py, the same",
    "jobs/ledgers/upkeep.py": "tests/conformance/test_job_ledgers.py; tests/jobs/ledgers/test_turn.py reads its plans",
    "server/direct.py": "a Protocol and a tuple; tests/server/test_connection.py and test_rest_direct.py meet them",
    "client/oip_grpc.py": "tests/client/test_server.py puts both implementations to the same questions",
    "core/outcome.py": "values without behaviour; tests/pipeline/test_items.py makes and reads them",
    "core/predictor.py": "a Protocol; headrace.testing checks implementations",
    "core/service.py": "a Protocol; headrace.testing checks implementations",
    "runtimes/mlserver.py": "tests/environments/mlserver/test_mlserver.py, in its own environment: make test-mlserver",
    "formats/contract.py": "Protocols; headrace.testing checks implementations",
    "formats/container.py": "the door to PyAV; tests/formats/test_audio.py and test_video.py run all of it",
    "protocols/oip_grpc/schema.py": "tables; test_messages.py makes classes of all of them",
    "protocols/oip_grpc/health.py": "tests/server/test_grpc_health.py encodes and decodes them",
    "protocols/oip_grpc/reflection.py": "tests/server/test_grpc_service.py asks it all that it answers",
    "server/grpc_contract.py": "Protocols; tests/server/grpc_support.py implements them",
    "cli/transform.py": "tests/integration/test_transform_command.py types it as a user would",
    "cli/transform_ending.py": "tests/integration/test_transform_command.py reads what it says, in words and as JSON",
    "transforms/runners/processes.py": "tests/integration/test_transform_faults.py and test_transform_kill.py run, kill and lose processes",
    "transforms/runners/beam_pipeline.py": "tests/transforms/runners/test_beam.py runs it, in processes of Beam's",
    "transforms/runners/dispatched.py": "five lines of delegation; the tests of each runner look at its figures",
    "transforms/retry_whole.py": "tests/transforms/test_retry.py does objects again, and dies between any two calls",
    "jobs/outbox.py": "a Protocol and values; headrace.testing checks implementations, and tests/testing/test_outbox.py the checks",
    "jobs/dispatcher.py": "Protocols, and counts; headrace.testing checks implementations",
    "jobs/ledger.py": "a Protocol and values; tests/conformance/test_job_ledgers.py and tests/jobs/test_ledger_model.py run implementations",
    "testing/job_checks/bench.py": "tests/conformance/test_job_ledgers.py and tests/testing/test_job_ledger.py stand on it",
    "testing/job_checks/claiming.py": "tests/testing/test_job_ledger.py breaks what it promises, and sees it go red",
    "testing/job_checks/deciding.py": "tests/testing/test_job_ledger.py, the same",
    "testing/job_checks/looking.py": "tests/testing/test_job_ledger.py, the same",
    "testing/job_checks/regions.py": "tests/testing/test_job_ledger.py, the same",
    "testing/job_checks/settling.py": "tests/testing/test_job_ledger.py, the same",
    "testing/job_checks/submitting.py": "tests/testing/test_job_ledger.py, the same",
    "testing/job_checks/upkeep.py": "tests/testing/test_job_ledger.py, the same",
    "testing/job_checks/knowing.py": "tests/testing/test_job_ledger.py, the same",
    "testing/job_checks/waiting.py": "tests/testing/test_job_ledger.py, the same",
    "checkpoints/store.py": "a Protocol and values; headrace.testing checks implementations",
    "storage/contract.py": "Protocols; headrace.testing checks implementations",
    "storage/memory.py": "tests/conformance/test_stores.py runs the whole suite over it",
}


def _git_files() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def _texts() -> Iterator[tuple[str, str]]:
    """Every text file of the repository, by name."""
    for name in _git_files():
        data = (ROOT / name).read_bytes()
        if b"\0" not in data[:8192]:
            yield name, data.decode("utf-8", "replace")


def _modules() -> list[str]:
    """Paths of modules below src/headrace, rooms' own __init__.py left out."""
    paths = (path.relative_to(SRC).as_posix() for path in SRC.rglob("*.py"))
    return sorted(path for path in paths if not path.endswith("/__init__.py"))


def _mirror(module: str) -> Path:
    path = Path(module)
    return ROOT / "tests" / path.parent / f"test_{path.name}"


def _doors() -> dict[str, list[str]]:
    """Import name -> modules that the import contract lets import it."""
    contracts = PYPROJECT["tool"]["importlinter"]["contracts"]
    contract = next(c for c in contracts if c["name"] == "Each optional dependency has one door")
    doors: dict[str, list[str]] = {name: [] for name in contract["forbidden_modules"]}
    for line in contract["ignore_imports"]:
        module, _, imported = line.partition(" -> ")
        doors[imported].append(module)
    return doors


def _modules_of_door(door: str) -> list[Path]:
    """The files that may import: of ``room.*``, which is one door, the modules right below that package."""
    package, star, _ = door.partition(".*")
    path = SRC.parent / package.replace(".", "/")
    if not star:
        return [path.with_suffix(".py")] if path.with_suffix(".py").is_file() else []
    return sorted(module for module in path.glob("*.py") if module.name != "__init__.py")


def _wrong_with_door(door: str, imported: str) -> str:
    """What keeps it from being the door of what is imported; "" when nothing does."""
    modules = _modules_of_door(door)
    if not modules:
        return f"{door}, the door of {imported}, does not exist"
    if not any(imported in _imports(module.read_text()) for module in modules):
        return f"{door} does not import {imported}"
    return ""


def _pins(name: str = "constraints.txt") -> dict[str, str]:
    lines = (ROOT / name).read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return dict(pairs)


def _declared_requirements() -> list[Requirement]:
    project = PYPROJECT["project"]
    texts = [
        *PYPROJECT["build-system"]["requires"],
        *project["dependencies"],
        *(
            text
            for extra, texts in project["optional-dependencies"].items()
            if extra not in _EXTRAS_APART
            for text in texts
        ),
    ]
    return [requirement for text in texts if (requirement := Requirement(text)).name != "headrace"]


def _imports(source: str) -> set[str]:
    """Top-level names of every import statement, at the top or inside a function."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
            names.add(
                ast.literal_eval(node.args[0]).split(".")[0] if isinstance(node.args[0], ast.Constant) else ""
            )
    return names


def test_no_file_names_a_package_index():
    """Where packages come from is the business of whoever installs them."""
    found = [(name, host) for name, text in _texts() for host in _INDEX_HOSTS if host in text]
    assert found == []


def test_no_file_names_a_path_of_some_machine():
    """An absolute path of somebody's machine works nowhere else."""
    found = [(name, match.group()) for name, text in _texts() for match in _MACHINE_PATH.finditer(text)]
    assert found == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("cd /" + "root/project", True),
        ('open("/' + 'work/x")', True),
        ("find-links = /" + "opt/wheels/", True),
        ("https://host.example/work/x", False),
        ("$TMP/work/x", False),
        ("src/headrace/work/x.py", False),
    ],
)
def test_the_rule_on_machine_paths_can_tell(text, wrong):
    """The pattern above finds what it should, and leaves URLs and relative paths alone."""
    assert bool(_MACHINE_PATH.search(text)) == wrong


def test_constraints_pin_all_that_is_declared_and_nothing_else_but_versions():
    """Every declared requirement has an exact pin that fits it; lines are `name==version`, sorted."""
    pins = _pins()
    for requirement in _declared_requirements():
        version = pins.get(canonicalize_name(requirement.name))
        assert version, f"{requirement.name} is not pinned: run scripts/pin_constraints.py"
        assert Version(version) in requirement.specifier, f"{requirement} is pinned to {version}"
    assert list(pins) == sorted(pins)
    assert not {"headrace", "pip"} & set(pins)
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*", version) for version in pins.values())


@pytest.mark.parametrize(("extra", "name"), _EXTRAS_APART.items())
def test_environments_apart_are_pinned_too(extra, name):
    """The same for what has an environment of its own; its verb runs its tests, and the usual run does not."""
    pins = _pins(name)
    for text in [
        *PYPROJECT["project"]["dependencies"],
        *PYPROJECT["project"]["optional-dependencies"][extra],
    ]:
        requirement = Requirement(text)
        assert Version(pins[canonicalize_name(requirement.name)]) in requirement.specifier
    assert list(pins) == sorted(pins)
    assert not {"headrace", "pip"} & set(pins)
    assert "environments" in PYPROJECT["tool"]["pytest"]["ini_options"]["norecursedirs"]
    assert (ROOT / "tests" / "environments" / extra / f"test_{extra}.py").is_file()
    assert f"test-{extra}:" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize(
    "extra",
    [
        e
        for e in PYPROJECT["project"]["optional-dependencies"]
        if e not in _EXTRAS_WITHOUT_DOOR and e not in _EXTRAS_APART
    ],
)
def test_every_extra_has_its_door(extra):
    """What an extra installs is imported by exactly one module (or the modules of one package), and the extra is named where it is missing."""
    names_of = importlib.metadata.packages_distributions()
    for text in PYPROJECT["project"]["optional-dependencies"][extra]:
        distribution = canonicalize_name(Requirement(text).name)
        if distribution == "headrace":
            continue  # another extra, which has its own door
        imports = {
            name for name, owners in names_of.items() if distribution in map(canonicalize_name, owners)
        }
        (imported,) = imports & set(_doors())
        doors = _doors()[imported]
        assert len(doors) == 1 or (len(doors) == 2 and imported in _SEVERAL_DOORS), doors
        assert [wrong for door in doors if (wrong := _wrong_with_door(door, imported))] == []
    named = re.compile(rf'MissingExtraError\(\s*(?:extra=)?"{extra}"')
    assert any(named.search(path.read_text()) for path in SRC.rglob("*.py")), (
        f"nothing says that {extra!r} is missing"
    )


@pytest.mark.parametrize(
    ("door", "imported", "wrong"),
    [
        ("headrace.formats.image", "PIL", ""),
        ("headrace.formats.image", "av", "does not import av"),
        ("headrace.formats.nowhere", "PIL", "does not exist"),
        ("headrace.formats", "PIL", "does not exist"),
        ("headrace.formats.*", "PIL", ""),
        ("headrace.formats.*", "boto3", "does not import boto3"),
        ("headrace.*", "PIL", "does not import PIL"),
        ("headrace.nowhere.*", "PIL", "does not exist"),
    ],
)
def test_the_rule_on_doors_can_tell(door, imported, wrong):
    """A package is a door as one of its modules is; what lies deeper, or does not import, is none."""
    told = _wrong_with_door(door, imported)
    assert wrong in told
    assert bool(told) is bool(wrong)


def test_clients_of_other_projects_are_pinned():
    """Each has its folder, its verb's list names it, and its environment is told in full, by exact versions."""
    folder = ROOT / "tests" / "environments" / "clients"
    listed = re.search(r"^CLIENTS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE).group(1).split()
    assert sorted(path.parent.name for path in folder.glob("*/requirements.txt")) == listed
    for client in listed:
        pins = _pins(f"tests/environments/clients/{client}/requirements.txt")
        assert list(pins) == sorted(pins)
        assert {"pytest", "pytest-timeout"} <= set(pins)
        assert not {"headrace", "pip"} & set(pins)
        assert all(re.fullmatch(r"[0-9][0-9a-z.]*", version) for version in pins.values())


def test_extras_without_a_door_exist():
    """An exemption for an extra that is gone would hide the next one of that name."""
    assert set(_EXTRAS_WITHOUT_DOOR) <= set(PYPROJECT["project"]["optional-dependencies"])


def test_every_module_has_its_test_file():
    """src/headrace/<room>/<module>.py is tested by tests/<room>/test_<module>.py."""
    missing = [module for module in _modules() if module not in _UNMIRRORED and not _mirror(module).is_file()]
    assert missing == []


def test_exemptions_from_mirroring_are_needed():
    """An exempted module exists, and has no test file after all."""
    modules = _modules()
    assert [module for module in _UNMIRRORED if module not in modules] == []
    assert [module for module in _UNMIRRORED if _mirror(module).is_file()] == []


def test_the_version_is_told_once():
    """`headrace.__version__` is the one place; it is a version, and newer than any in the changelog."""
    assert PYPROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "headrace.__version__"}
    version = Version(headrace.__version__)
    released = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert all(Version(text) <= version for text in released)


def test_changelog_fragments_are_named_right():
    """`<issue>.<type>.md` or `+<words>.<type>.md`, with something in it."""
    types = "|".join(kind["directory"] for kind in PYPROJECT["tool"]["towncrier"]["type"])
    pattern = re.compile(rf"(?:\d+|\+[a-z0-9-]+)\.(?:{types})\.md")
    fragments = [path for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md"]
    assert [path.name for path in fragments if not pattern.fullmatch(path.name)] == []
    assert [path.name for path in fragments if not path.read_text().strip()] == []


def test_commit_hooks_fetch_nothing():
    """Hooks are tools of .venv, so that a commit needs no network."""
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [repo["repo"] for repo in config["repos"]] == ["local"]
    hooks = config["repos"][0]["hooks"]
    assert [hook["id"] for hook in hooks if hook["language"] != "system"] == []
    assert [hook["id"] for hook in hooks if not hook["entry"].startswith(".venv/bin/")] == []


def test_make_lists_every_verb():
    """`make` alone shows each verb of .PHONY with a line of its own."""
    shown = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    verbs = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE).group(1).split()
    assert [line.split()[1] for line in shown.splitlines()] == verbs
    assert all(len(line.split()) > 2 for line in shown.splitlines())


def _run_ci(folder: Path, **commands: str) -> tuple[int, list[str]]:
    """Run .ci/run with nothing on the path but what it needs and these: its exit status, and what it called."""
    (folder / ".ci").mkdir()
    (folder / "bin").mkdir()
    script = Path(shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run"))
    for name in ("bash", "dirname", "timeout"):
        (folder / "bin" / name).symlink_to(shutil.which(name))
    for name, body in {"make": "exit 0", **commands}.items():
        file = folder / "bin" / name
        file.write_text(f'#!/usr/bin/env bash\necho "{name} $*" >> "$CALLS"\n{body}\n')
        file.chmod(0o755)
    calls = folder / "calls"
    environ = {"PATH": str(folder / "bin"), "CALLS": str(calls)}
    done = subprocess.run([script], env=environ, check=False, capture_output=True, timeout=60)
    return done.returncode, calls.read_text().splitlines()


@pytest.mark.parametrize("user", [0, 1000])
@pytest.mark.parametrize("installs", [True, False])
def test_ci_installs_the_broker_before_the_tests_where_it_can(tmp_path, user, installs):
    """As root, by apt; and where that does not work, CI goes on without."""
    status, calls = _run_ci(tmp_path, id=f"echo {user}", **{"apt-get": f"exit {0 if installs else 100}"})
    apt = [call for call in calls if call.startswith("apt-get")]
    assert status == 0
    assert [call for call in calls if call.startswith("make")][:2] == ["make lint", "make test"]
    if user:
        assert apt == []
        return
    assert apt[0].startswith("apt-get ")
    assert any("--no-install-recommends rabbitmq-server" in call for call in apt) is installs
    assert max(map(calls.index, apt)) < calls.index("make test")


def test_ci_installs_no_broker_that_is_there(tmp_path):
    """Nor does it need apt at all."""
    status, calls = _run_ci(tmp_path, id="echo 0", **{"rabbitmq-server": "exit 1", "apt-get": "exit 1"})
    assert status == 0
    assert [call for call in calls if call.startswith("apt-get")] == []


def test_ci_stops_at_the_first_verb_that_fails(tmp_path):
    """What comes after it would only hide it."""
    status, calls = _run_ci(tmp_path, make='[ "$1" != test ]', id="echo 1000")
    assert status != 0
    assert [call for call in calls if call.startswith("make")] == ["make lint", "make test"]


def test_ci_runs_what_the_readme_promises():
    """CI is `make lint`, the README's test command and each environment apart, and stops at the first that fails."""
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    assert [line for line in lines if line.startswith("make ")] == [
        "make lint",
        "make test",
        *(f"make test-{extra}" for extra in _EXTRAS_APART),
        "make test-clients",
    ]
