"""Compose files as Docker Compose reads them: anchors, merged files, and variables with their defaults."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "deploy" / "compose"
_VARIABLE = re.compile(
    r"\$(?:(?P<dollar>\$)|\{(?P<name>\w+)(?P<form>:-(?P<default>[^${}]*))?\}|(?P<other>.?))"
)
_REPLACED_LISTS = {"command", "entrypoint", "test"}
"""Lists that a later file replaces. It adds to all others."""


def read_compose(*names: str, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the merged files of deploy/compose with values in place of variables.

    Raise ValueError for a variable without a value, and for forms of variables that the files do not need.
    """
    merged: Any = {}
    for name in names or ("compose.yaml",):
        merged = _merge(merged, yaml.safe_load((FOLDER / name).read_text()))
    return interpolate(merged, variables or {})


def interpolate(value: Any, variables: Mapping[str, str]) -> Any:
    """Return `value` with the values of variables, or their defaults, in all of its texts."""
    if isinstance(value, dict):
        return {key: interpolate(each, variables) for key, each in value.items()}
    if isinstance(value, list):
        return [interpolate(each, variables) for each in value]
    return _VARIABLE.sub(lambda found: _value(found, variables), value) if isinstance(value, str) else value


def _value(found: re.Match[str], variables: Mapping[str, str]) -> str:
    if found["dollar"]:
        return "$"
    if not found["name"]:
        raise ValueError(f"{found.string!r}: only ${{NAME:-default}}, ${{NAME}} and $$ are known")
    # With ":-", an empty value counts as none.
    value = variables.get(found["name"]) or found["default"]
    if value is None:
        raise ValueError(f"{found.string!r}: {found['name']} has no value and no default")
    return value


def _merge(below: Any, above: Any, key: str = "") -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        return below | {name: _merge(below.get(name), each, name) for name, each in above.items()}
    if isinstance(below, list) and isinstance(above, list) and key not in _REPLACED_LISTS:
        return below + above
    return above
