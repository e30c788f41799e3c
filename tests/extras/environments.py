"""Virtual environments that hold the built wheel and the packages of one extra, made without network.

The packages come from the environment that runs the tests: they are linked, not copied. A package that
the extra does not require is absent, also if another extra's tests need it.
"""

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from integration.jobs_process import CommandProcess

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0
NO_PATHS = {"PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": ""}
"""Variables of processes in an environment: the checkout is not on its path."""
_SOURCES = ("src", "pyproject.toml", "README.md", "LICENSE")
_ENTRY = """\
#!{python}
import sys
from headrace.cli import main
sys.exit(main())
"""


# One interpreter imports the command line once; each command runs in a fork of it, as fresh as a new process.
_FORKS = """
import json, os, sys
from headrace.cli import main

def run(arguments, name):
    for number in (1, 2):
        os.dup2(os.open(f"{name}.{number}", os.O_WRONLY | os.O_CREAT), number)
    status = 0
    try:
        main(arguments, prog_name="headrace")
    except SystemExit as ended:
        status = ended.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

statuses = []
for place, arguments in enumerate(json.loads(sys.argv[1])):
    if not (child := os.fork()):
        run(arguments, f"{sys.argv[2]}/{place}")
    statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(statuses)
"""


class MissingDistributionError(Exception):
    """The environment of the tests lacks a distribution of an extra."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment with the wheel and one extra."""

    folder: Path
    distributions: frozenset[str]
    """The canonical names of the linked distributions."""

    @property
    def python(self) -> Path:
        """The interpreter of the environment."""
        return self.folder / "bin" / "python"

    @property
    def command(self) -> Path:
        """The `headrace` command of the environment."""
        return self.folder / "bin" / "headrace"

    def run(self, *arguments: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run ``headrace ARGUMENTS`` in a folder."""
        return self._run([str(self.command), *arguments], folder, environ)

    def script(self, text: str, folder: Path) -> str:
        """Run a Python script in a folder and return its standard output. It must succeed."""
        done = self._run([str(self.python), "-c", text], folder, {})
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run_all(self, commands: Sequence[str], folder: Path) -> list[tuple[int, str]]:
        """Run headrace commands in a folder one after the other. Return their statuses and errors."""
        outputs = folder / "outputs"
        outputs.mkdir()
        lines = json.dumps([command.split() for command in commands])
        done = self._run([str(self.python), "-c", _FORKS, lines, str(outputs)], folder, {})
        assert done.returncode == 0, done.stderr
        errors = [(outputs / f"{place}.2").read_text() for place in range(len(commands))]
        return list(zip(json.loads(done.stdout), errors, strict=True))

    def start(self, *arguments: str, folder: Path, **environ: str) -> CommandProcess:
        """Start ``headrace ARGUMENTS`` in a folder."""
        return CommandProcess(
            folder, *arguments, environ={**NO_PATHS, **environ}, program=[str(self.command)]
        )

    def _run(
        self, command: list[str], folder: Path, environ: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **NO_PATHS, **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )


def build_wheel(folder: Path) -> Path:
    """Build the wheel of the checkout below `folder`, and return a folder with its files.

    The sources are copied first: an old build/ folder of the checkout could add deleted modules.
    """
    copy = folder / "checkout"
    copy.mkdir()
    for name in _SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, copy)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "wheel", "--no-index"]
    command += ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(copy)]
    subprocess.run(command, check=True, env={**os.environ, **NO_PATHS})
    (wheel,) = folder.glob("headrace-*.whl")
    unpacked = folder / "wheel"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    return unpacked


class EnvironmentMaker:
    """A factory of environments of one unpacked wheel. Each takes some tens of milliseconds."""

    def __init__(self, wheel: Path, folder: Path) -> None:
        self._wheel = wheel
        self._folder = folder
        self._made: dict[tuple[str, ...], Environment] = {}
        (info,) = wheel.glob("*.dist-info")
        self._requires = [Requirement(text) for text in metadata.Distribution.at(info).requires or ()]
        self._installed = {canonicalize_name(d.name): d for d in metadata.distributions()}
        self._tops = {name: _tops(d) for name, d in self._installed.items()}
        self._owners = Counter(top for tops in self._tops.values() for top in tops)

    def make(self, *extras: str) -> Environment:
        """Return an environment with the wheel and the extras, which is made once.

        Raise MissingDistributionError if a required distribution is not installed here.
        """
        if extras not in self._made:
            self._made[extras] = self._make(extras)
        return self._made[extras]

    def _make(self, extras: tuple[str, ...]) -> Environment:
        closure = self._closure(extras)
        target = self._folder / ("-".join(extras) or "base")
        venv.EnvBuilder(symlinks=True, with_pip=False).create(target)
        (site,) = target.glob("lib/python*/site-packages")
        for entry in self._wheel.iterdir():
            (site / entry.name).symlink_to(entry)
        for name in closure:
            self._link(name, site)
        environment = Environment(target, frozenset(closure))
        environment.command.write_text(_ENTRY.format(python=environment.python))
        environment.command.chmod(0o755)
        return environment

    def _closure(self, extras: Iterable[str]) -> set[str]:
        """Return the names of all distributions that the wheel needs with the extras."""
        found: set[str] = set()
        seen: set[tuple[str, str]] = set()
        waiting = [("headrace", extra) for extra in ("", *extras)]
        while waiting:
            name, extra = waiting.pop()
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            if name != "headrace":
                if name not in self._installed:
                    raise MissingDistributionError(name)
                found.add(name)
            for needed in self._requirements(name, extra):
                other = canonicalize_name(needed.name)
                waiting += [(other, wanted) for wanted in ("", *needed.extras)]
        return found

    def _requirements(self, name: str, extra: str) -> Iterator[Requirement]:
        if name == "headrace":
            requires = self._requires
        else:
            requires = [Requirement(text) for text in self._installed[name].requires or ()]
        for needed in requires:
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                yield needed

    def _link(self, name: str, site: Path) -> None:
        """Link a distribution's folders, or its files where several distributions share a folder."""
        distribution = self._installed[name]
        for top in self._tops[name]:
            source = Path(str(distribution.locate_file(top)))
            if self._owners[top] == 1:
                (site / top).symlink_to(source)
                continue
            for file in distribution.files or ():
                if file.parts[0] == top and file.suffix != ".pyc":
                    link = site / file
                    link.parent.mkdir(parents=True, exist_ok=True)
                    link.symlink_to(Path(str(distribution.locate_file(file))))


def _tops(distribution: metadata.Distribution) -> set[str]:
    """Return the entries of site-packages that hold the distribution's files."""
    files: Iterable[PurePosixPath] = distribution.files or ()
    return {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}
