"""Write constraints.txt: the versions of the requirements of `headrace[dev,docs]` in this environment.

Run it with the environment that passed the tests::

    .venv/bin/python scripts/pin_constraints.py

The file contains only names and versions: no index address, no path, no hash of a local build.
headrace, pip and other installed packages are left out. To upgrade: run `pip install --upgrade`,
run `make check`, run this script, and commit.
"""

import argparse
import importlib.metadata
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent

# headrace and the installer.
UNPINNED = frozenset({"headrace", "pip"})

# Released as one build for each accelerator. The release (2.13.0) admits all builds (2.13.0+cpu).
BUILDS_OF_A_RELEASE = frozenset({"torch"})

HEADER = """\
# Exact versions of everything that headrace[dev,docs] needs; see docs/adr/0002-constraints-not-lock.md.
# Written by scripts/pin_constraints.py, not by hand.
"""


class CannotPinError(Exception):
    """An installed distribution that a version alone does not identify."""


def _wanted(requirement: Requirement, extras: frozenset[str]) -> bool:
    """Return True if the requirement applies to this machine with any of the extras."""
    if requirement.marker is None:
        return True
    return any(requirement.marker.evaluate({"extra": extra}) for extra in extras or {""})


def _needed(roots: list[Requirement]) -> set[str]:
    """Return the canonical names of all installed distributions that the roots require."""
    seen: set[tuple[str, frozenset[str]]] = set()
    queue = list(roots)
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        extras = frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        texts = importlib.metadata.requires(name) or []
        children = [Requirement(text) for text in texts]
        queue += [child for child in children if _wanted(child, extras | {""})]
    return {name for name, _ in seen}


def _version(name: str) -> str:
    """Return the installed version. Raise CannotPinError for a local build."""
    distribution = importlib.metadata.distribution(name)
    if name in BUILDS_OF_A_RELEASE:
        return distribution.version.partition("+")[0]
    if "+" in distribution.version:
        raise CannotPinError(f"{name} {distribution.version} is a local build: install a release, then pin")
    if distribution.read_text("direct_url.json"):
        raise CannotPinError(f"{name} was installed from a path or URL: install a release, then pin")
    return distribution.version


def constraints(pyproject: Path) -> str:
    """Return the text of the constraints file.

    Raises:
        CannotPinError: A required distribution is a local build, or was installed from a path.
        importlib.metadata.PackageNotFoundError: A required distribution is not installed.
    """
    build_system = tomllib.loads(pyproject.read_text())["build-system"]["requires"]
    roots = [Requirement("headrace[dev,docs]"), *map(Requirement, build_system)]
    names = sorted(_needed(roots) - UNPINNED)
    return HEADER + "".join(f"{name}=={_version(name)}\n" for name in names)


def main() -> int:
    """Write the file, or with --check compare it. Return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file is out of date")
    arguments = parser.parse_args()
    path = ROOT / "constraints.txt"
    try:
        text = constraints(ROOT / "pyproject.toml")
    except (CannotPinError, importlib.metadata.PackageNotFoundError) as error:
        print(f"constraints.txt not written: {error}", file=sys.stderr)
        return 1
    if not arguments.check:
        path.write_text(text)
        return 0
    if path.read_text() == text:
        return 0
    print("constraints.txt differs from this environment: run scripts/pin_constraints.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
