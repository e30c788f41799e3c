"""Competitors: where each one's Python is, and what it means that one did not do its job."""

from collections.abc import Sequence
from pathlib import Path

ENVIRONMENTS = Path(".venv-peers")


class BrokenRunError(Exception):
    """A competitor did not do its job."""


def interpreters(
    names: Sequence[str], given: Sequence[str], environments: Path = ENVIRONMENTS
) -> dict[str, Path]:
    """Where each peer's Python is: as given (NAME=PYTHON), else in `.venv-peers/NAME`. Raises ValueError."""
    found = {name: environments / name / "bin" / "python" for name in names}
    for text in given:
        name, equals, path = text.partition("=")
        if name not in found or not equals:
            raise ValueError(f"--peer is NAME=PYTHON with a name of {', '.join(names)}, not {text}")
        if not Path(path).exists():
            raise ValueError(f"--peer {name}: there is no {path}")
        found[name] = Path(path)
    return {name: path for name, path in found.items() if path.exists()}
