"""Write constraints.txt: the exact version of all that `headrace[dev]` needs, as installed beside this Python.

Run it with the environment that passed the tests::

    .venv/bin/python scripts/pin_constraints.py

What is written depends on nothing but versions: no index address, no path, no hash of a machine's own build. headrace
itself, pip, and whatever else happens to be installed are left out. Upgrading is: `pip install --upgrade` what you
want, `make check`, run this, commit.
"""

import argparse
import importlib.metadata
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent

# Never pinned: ourselves and the installer.
UNPINNED = frozenset({"headrace", "pip"})

# Released as builds for every accelerator: pinned by the release (2.13.0), which any of its builds (2.13.0+cpu) satisfies.
BUILDS_OF_A_RELEASE = frozenset({"torch"})

HEADER = """\
# Exact versions of everything that headrace[dev] needs; see docs/adr/0002-constraints-not-lock.md.
# Written by scripts/pin_constraints.py, not by hand.
"""


class CannotPinError(Exception):
    """Something installed cannot be named by a version alone."""


def _wanted(requirement: Requirement, extras: frozenset[str]) -> bool:
    """Whether the requirement holds on this machine, asked for with any of the extras."""
    if requirement.marker is None:
        return True
    return any(requirement.marker.evaluate({"extra": extra}) for extra in extras or {""})


def _needed(roots: list[Requirement]) -> set[str]:
    """Canonical names of every installed distribution that the roots lead to."""
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
    """The installed version; refused where it names a build of this machine instead of a release."""
    distribution = importlib.metadata.distribution(name)
    if name in BUILDS_OF_A_RELEASE:
        return distribution.version.partition("+")[0]
    if "+" in distribution.version:
        raise CannotPinError(
            f"{name} {distribution.version} is a local build: install a release of it, then pin"
        )
    if distribution.read_text("direct_url.json"):
        raise CannotPinError(f"{name} was installed from a path or URL: install a release of it, then pin")
    return distribution.version


def constraints(pyproject: Path) -> str:
    """The text of the constraints file.

    Raises:
        CannotPinError: a needed distribution is a local build, or was installed from a path.
        importlib.metadata.PackageNotFoundError: a needed distribution is not installed.
    """
    build_system = tomllib.loads(pyproject.read_text())["build-system"]["requires"]
    roots = [Requirement("headrace[dev]"), *map(Requirement, build_system)]
    names = sorted(_needed(roots) - UNPINNED)
    return HEADER + "".join(f"{name}=={_version(name)}\n" for name in names)


def main() -> int:
    """Write the file, or with --check say whether it is what it would write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail when the file is out of date"
    )
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
    print("constraints.txt is not what this environment has: run scripts/pin_constraints.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
