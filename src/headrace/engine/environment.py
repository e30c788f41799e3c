"""Which variables of the environment the process of an instance is given. Pure."""

from collections.abc import Collection, Mapping
from typing import Final

_NEEDED: Final = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LD_PRELOAD", "PATH", "TMPDIR", "TZ"}
)
_NEEDED_PREFIXES: Final = ("LC_", "PYTHON")


def passed(environ: Mapping[str, str], names: Collection[str] | None) -> dict[str, str]:
    """The variables of these names, and those that Python and the libraries below it need to start; None: all."""
    if names is None:
        return dict(environ)
    return {
        name: value
        for name, value in environ.items()
        if name in names or name in _NEEDED or name.startswith(_NEEDED_PREFIXES)
    }
