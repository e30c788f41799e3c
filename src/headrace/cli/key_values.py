"""``KEY=VALUE`` options, as ``-O`` and ``-P`` take them."""

import tomllib
from collections.abc import Sequence
from typing import Any

from headrace.core.errors import ConfigError


def key_values(pairs: Sequence[str], option: str) -> dict[str, Any]:
    """The values by their keys: in TOML's spelling, else plain text. ConfigError names the `option` of what is no pair."""
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
