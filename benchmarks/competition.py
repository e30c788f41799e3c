"""The Python interpreters of the peers, and the error of a broken run."""

from collections.abc import Sequence
from pathlib import Path

ENVIRONMENTS = Path(".venv-peers")


class BrokenRunError(Exception):
    """A competitor did not do its job."""


def interpreters(
    names: Sequence[str], options: Sequence[str], environments: Path = ENVIRONMENTS
) -> dict[str, Path]:
    """Return each peer's interpreter: NAME=PYTHON of `options`, else `.venv-peers/NAME` if it
    exists.

    Raise ValueError for an invalid option.
    """
    found = {name: environments / name / "bin" / "python" for name in names}
    for text in options:
        name, equals, path = text.partition("=")
        if name not in found or not equals:
            raise ValueError(f"--peer must be NAME=PYTHON with a name of {', '.join(names)}, not {text}")
        if not Path(path).exists():
            raise ValueError(f"--peer {name}: {path} does not exist")
        found[name] = Path(path)
    return {name: path for name, path in found.items() if path.exists()}
