"""Rules of the repository that no other tool checks: contents of files, pins, extras, commands and CI."""

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

# In pieces, so that this file keeps the rule.
_INDEX_HOSTS = (
    "pypi" + ".org",
    "python" + "hosted.org",
    "npmjs" + ".org",
    "npmjs" + ".com",
    "conda" + ".anaconda.org",
)
_MACHINE_FOLDERS = ("root", "work", "opt/wheels", "opt/pypi", "home/[a-z]+", "Users/[A-Za-z]+")
# The lookbehind excludes URLs and relative paths, such as `https://host/work/`.
_MACHINE_PATH = re.compile(rf"(?<![\w./:$}}-])/(?:{'|'.join(_MACHINE_FOLDERS)})/")

_EXTRAS_WITHOUT_ADAPTER = {
    "all": "names other extras",
    "up": "names other extras",
    "demo": "for examples/demo only",
    "test": "for tests only",
    "examples": "for examples/serving and examples/sequences only",
    "dev": "tools and tests only",
    "docs": "for the site only",
    "http2": "a parser that uvicorn looks up by its name",
}

# Extras whose pins clash with other tools, with the constraints file of their own environment.
_SEPARATE_EXTRAS = {"mlserver": "constraints-mlserver.txt"}

_SEVERAL_ADAPTERS = {
    "apache_beam": "handlers for a user's pipeline; the pipeline of a transform",
    "uvicorn": "its server, and its protocol class, which a module extends",
    "grpc": "the server's listener and the client: a client imports no server",
    "boto3": "credentials and bucket regions of the object store; AWS queues and notifications of jobs",
    "redis": "a wakeup broker of jobs, and a checkpoint store: each is used without the other",
}
_EXTRAS_WITH_FALLBACK = {"fast": "without it orjson and zlib do the same work"}


def _git_files() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def _texts() -> Iterator[tuple[str, str]]:
    """Yield the name and text of every text file of the repository."""
    for name in _git_files():
        data = (ROOT / name).read_bytes()
        if b"\0" not in data[:8192]:
            yield name, data.decode("utf-8", "replace")


def _adapters() -> dict[str, list[str]]:
    """Return, for each import name, the modules that the import contract allows to import it."""
    contracts = PYPROJECT["tool"]["importlinter"]["contracts"]
    contract = next(c for c in contracts if c["name"] == "Each optional dependency is imported in one module")
    adapters: dict[str, list[str]] = {name: [] for name in contract["forbidden_modules"]}
    for line in contract["ignore_imports"]:
        module, _, imported = line.partition(" -> ")
        adapters[imported].append(module)
    return adapters


def _modules_of_adapter(adapter: str) -> list[Path]:
    """Return the files of an adapter; ``package.*`` is one adapter: the modules directly in that package."""
    package, star, _ = adapter.partition(".*")
    path = SRC.parent / package.replace(".", "/")
    if not star:
        return [module for module in (path.with_suffix(".py"), path / "__init__.py") if module.is_file()]
    return sorted(module for module in path.glob("*.py") if module.name != "__init__.py")


def _adapter_problem(adapter: str, imported: str) -> str:
    """Return the reason why the module is no adapter of the import, or ""."""
    modules = _modules_of_adapter(adapter)
    if not modules:
        return f"{adapter}, the adapter of {imported}, does not exist"
    if not any(imported in _imports(module.read_text()) for module in modules):
        return f"{adapter} does not import {imported}"
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
            if extra not in _SEPARATE_EXTRAS
            for text in texts
        ),
    ]
    return [requirement for text in texts if (requirement := Requirement(text)).name != "headrace"]


def _imports(source: str) -> set[str]:
    """Return the top-level names of all import statements, at the top and inside functions."""
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
    """The user chooses the index that packages come from."""
    found = [(name, host) for name, text in _texts() for host in _INDEX_HOSTS if host in text]
    assert found == []


def test_no_file_names_a_path_of_some_machine():
    """An absolute path of one machine works on no other."""
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
def test_machine_path_pattern_ignores_urls_and_relative_paths(text, wrong):
    assert bool(_MACHINE_PATH.search(text)) == wrong


def test_constraints_pin_every_declared_requirement():
    """Each pin is exact and fits its requirement; the lines are `name==version`, sorted."""
    pins = _pins()
    for requirement in _declared_requirements():
        version = pins.get(canonicalize_name(requirement.name))
        assert version, f"{requirement.name} is not pinned: run scripts/pin_constraints.py"
        assert Version(version) in requirement.specifier, f"{requirement} is pinned to {version}"
    assert list(pins) == sorted(pins)
    assert not {"headrace", "pip"} & set(pins)
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*", version) for version in pins.values())


@pytest.mark.parametrize(("extra", "name"), _SEPARATE_EXTRAS.items())
def test_separate_environments_are_pinned(extra, name):
    """A separate environment has pins and a command of its own, and the usual run leaves out its tests."""
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


@pytest.mark.slow  # needs all extras: make setup-all
@pytest.mark.parametrize(
    "extra",
    [
        e
        for e in PYPROJECT["project"]["optional-dependencies"]
        if e not in _EXTRAS_WITHOUT_ADAPTER and e not in _SEPARATE_EXTRAS
    ],
)
def test_every_extra_has_an_adapter_module(extra):
    """One module (or one package) imports an extra's packages, and names the extra where it is missing.

    Nothing is missing where another library does the same work.
    """
    names_of = importlib.metadata.packages_distributions()
    for text in PYPROJECT["project"]["optional-dependencies"][extra]:
        distribution = canonicalize_name(Requirement(text).name)
        if distribution in ("headrace", "tzdata"):
            continue  # another extra, with an adapter of its own; data that zoneinfo reads
        imports = {
            name for name, owners in names_of.items() if distribution in map(canonicalize_name, owners)
        }
        (imported,) = imports & set(_adapters())
        adapters = _adapters()[imported]
        assert len(adapters) == 1 or (len(adapters) == 2 and imported in _SEVERAL_ADAPTERS), adapters
        assert [problem for adapter in adapters if (problem := _adapter_problem(adapter, imported))] == []
    if extra in _EXTRAS_WITH_FALLBACK:
        return
    named = re.compile(rf'MissingExtraError\(\s*(?:extra=)?"{extra}"')
    assert any(named.search(path.read_text()) for path in SRC.rglob("*.py")), (
        f"nothing says that {extra!r} is missing"
    )


@pytest.mark.parametrize(
    ("adapter", "imported", "problem"),
    [
        ("headrace.formats.media.image", "PIL", ""),
        ("headrace.formats.media.image", "av", "does not import av"),
        ("headrace.formats.nowhere", "PIL", "does not exist"),
        ("headrace.formats", "PIL", "does not import PIL"),
        ("headrace.jobs.client", "httpx", ""),
        ("headrace.formats.media.*", "PIL", ""),
        ("headrace.formats.*", "boto3", "does not import boto3"),
        ("headrace.*", "PIL", "does not import PIL"),
        ("headrace.nowhere.*", "PIL", "does not exist"),
    ],
)
def test_adapter_rule_reports_missing_modules_and_imports(adapter, imported, problem):
    reported = _adapter_problem(adapter, imported)
    assert problem in reported
    assert bool(reported) is bool(problem)


def test_clients_of_other_projects_are_pinned():
    """Each client has a folder, a place in the Makefile's list, and complete, exact requirements."""
    folder = ROOT / "tests" / "environments" / "clients"
    listed = re.search(r"^CLIENTS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE).group(1).split()
    assert sorted(path.parent.name for path in folder.glob("*/requirements.txt")) == listed
    for client in listed:
        pins = _pins(f"tests/environments/clients/{client}/requirements.txt")
        assert list(pins) == sorted(pins)
        assert {"pytest", "pytest-timeout"} <= set(pins)
        assert not {"headrace", "pip"} & set(pins)
        assert all(re.fullmatch(r"[0-9][0-9a-z.]*", version) for version in pins.values())


def test_extras_without_an_adapter_exist():
    """An exception for a removed extra would hide a later one of the same name."""
    assert set(_EXTRAS_WITHOUT_ADAPTER) <= set(PYPROJECT["project"]["optional-dependencies"])


def test_version_has_one_source():
    """`headrace.__version__` is the source, and not older than any version in the changelog."""
    assert PYPROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "headrace.__version__"}
    version = Version(headrace.__version__)
    released = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert all(Version(text) <= version for text in released)


def test_changelog_fragments_are_named_right():
    """Fragments are called `<issue>.<type>.md` or `+<words>.<type>.md`, and are not empty."""
    types = "|".join(kind["directory"] for kind in PYPROJECT["tool"]["towncrier"]["type"])
    pattern = re.compile(rf"(?:\d+|\+[a-z0-9-]+)\.(?:{types})\.md")
    fragments = [path for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md"]
    assert [path.name for path in fragments if not pattern.fullmatch(path.name)] == []
    assert [path.name for path in fragments if not path.read_text().strip()] == []


def test_commit_hooks_fetch_nothing():
    """Hooks are tools of .venv, so a commit needs no network."""
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [repo["repo"] for repo in config["repos"]] == ["local"]
    hooks = config["repos"][0]["hooks"]
    assert [hook["id"] for hook in hooks if hook["language"] != "system"] == []
    assert [hook["id"] for hook in hooks if not hook["entry"].startswith(".venv/bin/")] == []


def test_make_lists_every_verb():
    """`make` alone shows one line for each verb of .PHONY."""
    shown = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    verbs = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE).group(1).split()
    assert [line.split()[1] for line in shown.splitlines()] == verbs
    assert all(len(line.split()) > 2 for line in shown.splitlines())


def _run_ci(folder: Path, **commands: str) -> tuple[int, list[str]]:
    """Run .ci/run with only `commands` and basic tools on the path.

    Return its exit status and the commands that it ran.
    """
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
def test_ci_installs_programs_before_the_tests(tmp_path, user, installs):
    """CI installs them by apt as root, and continues without them where that fails."""
    status, calls = _run_ci(tmp_path, id=f"echo {user}", **{"apt-get": f"exit {0 if installs else 100}"})
    apt = [call for call in calls if call.startswith("apt-get")]
    assert status == 0
    assert [call for call in calls if call.startswith("make")][:3] == [
        "make lint",
        "make docs",
        "make test-all",
    ]
    if user:
        assert apt == []
        return
    assert apt[0].startswith("apt-get ")
    programs = "--no-install-recommends rabbitmq-server faketime prometheus kubernetes-client"
    assert any(programs in call for call in apt) is installs
    assert max(map(calls.index, apt)) < calls.index("make test-all")


def test_ci_uses_programs_that_are_installed(tmp_path):
    status, calls = _run_ci(
        tmp_path,
        id="echo 0",
        faketime="exit 1",
        promtool="exit 1",
        kubectl="exit 1",
        **{"rabbitmq-server": "exit 1", "apt-get": "exit 1"},
    )
    assert status == 0
    assert [call for call in calls if call.startswith("apt-get")] == []


def test_ci_stops_at_the_first_failing_command(tmp_path):
    status, calls = _run_ci(tmp_path, make='[ "$1" != test-all ]', id="echo 1000")
    assert status != 0
    assert [call for call in calls if call.startswith("make")] == [
        "make lint",
        "make docs",
        "make test-all",
    ]


def test_ci_runs_lint_tests_and_separate_environments():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    assert [line for line in lines if line.startswith("make ")] == [
        "make lint",
        "make docs",
        "make test-all",
        *(f"make test-{extra}" for extra in _SEPARATE_EXTRAS),
        "make test-clients",
    ]


def test_every_data_file_of_the_source_is_in_the_package():
    """A wheel has only the files that package-data names."""
    globs = PYPROJECT["tool"]["setuptools"]["package-data"]["headrace"]
    packaged = {path for glob in globs for path in SRC.glob(glob)}
    data = [
        ROOT / name for name in _git_files() if name.startswith("src/headrace/") and not name.endswith(".py")
    ]
    assert [path for path in data if path not in packaged] == []


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "docs/flows.md", "docs/invariants.md"])
def test_modules_and_files_named_in_a_page_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    source = ROOT / "src" / "headrace"
    packages = {folder.name for folder in source.iterdir() if folder.is_dir()}
    named = {
        name for name in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", text) if name.split(".")[0] in packages
    }
    missing = [name for name in named if not _is_module(source / name.replace(".", "/"))]
    files = re.findall(r"`((?:tests|[a-z]+)/[a-z_/]+(?:\.py)?)`", text)
    missing += [name for name in files if not (ROOT / name).exists() and not (source / name).exists()]
    assert not missing
    assert named or files


def _is_module(path):
    return path.is_dir() or path.with_suffix(".py").is_file()
