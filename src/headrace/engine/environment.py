"""Selection of the environment variables for the process of an instance. Pure."""

from collections.abc import Collection, Mapping
from typing import Final

_NEEDED: Final = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LD_PRELOAD", "PATH", "TMPDIR", "TZ"}
)
_NEEDED_PREFIXES: Final = ("LC_", "PYTHON")


def filter_environment(environ: Mapping[str, str], names: Collection[str] | None) -> dict[str, str]:
    """Return the named variables and those that Python needs to start; all if `names` is None."""
    if names is None:
        return dict(environ)
    return {
        name: value
        for name, value in environ.items()
        if name in names or name in _NEEDED or name.startswith(_NEEDED_PREFIXES)
    }
