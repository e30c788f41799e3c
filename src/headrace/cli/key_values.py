"""Parse ``KEY=VALUE`` options such as ``-O`` and ``-P``."""

import tomllib
from collections.abc import Sequence
from typing import Any

from headrace.core.errors import ConfigError


def key_values(pairs: Sequence[str], option: str) -> dict[str, Any]:
    """Return the values by key: TOML values where they parse as such, otherwise plain text.

    Raises ConfigError with the name of the `option` for text without a key or ``=``.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"{option} {pair!r} must be KEY=VALUE")
        try:
            values[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            values[key] = value
    return values
