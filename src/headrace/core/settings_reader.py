"""Read declared settings from documents (TOML, JSON), and describe documents by JSON Schemas."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, is_dataclass
from functools import cache
from math import inf
from typing import Annotated, Any, Final, TypeVar, cast, get_args, get_origin

import msgspec

from headrace.core.errors import ConfigError
from headrace.core.json_numbers import convert_json
from headrace.core.settings import DeclaredSetting, declared_settings, parse_size, refusal

_T = TypeVar("_T")
_COMPARED_CHARACTERS_MAX: Final = 60
_SIZE_PATTERN: Final = (
    r"^\s*([1-9][0-9]{0,14}(\.[0-9]{1,9})?\s*[kmgKMG]?|0\.[0-9]{0,2}[1-9][0-9]{0,6}\s*[kmgKMG])"
    r"([iI]?[bB])?\s*$"
)
"""The pattern of sizes of one byte or more. A fraction without a unit would be less than a byte."""
_SIZE_OR_ZERO_PATTERN: Final = f"^\\s*0\\s*$|{_SIZE_PATTERN}"


def read_settings(kind: type[_T], table: Mapping[str, Any], where: str) -> _T:
    """Return a settings object from a table whose keys are the names of its settings.

    Raises:
        ConfigError: A key is unknown or missing, or a value is invalid. The message begins with `where`.
    """
    values = read_table(kind, table, where)
    for declared in declared_settings(kind):
        if declared.default is MISSING and declared.field not in values:
            raise ConfigError(f"{where}: '{declared.name}' is missing: it must be {declared.expected}")
    try:
        return kind(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def read_table(kind: type, table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the values of a table by the fields of a settings class.

    Raises:
        ConfigError: As for `read_settings`, but for missing keys.
    """
    known = {each.name: each for each in declared_settings(kind) if not each.setting.python_only}
    if unknown := sorted(table.keys() - known.keys()):
        hint = suggestion(unknown[0], known) or f"; the keys are {', '.join(known)}"
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}{hint}")
    return {
        known[name].field: read_value(known[name], value, f"{where}.{name}") for name, value in table.items()
    }


def read_value(declared: DeclaredSetting, value: Any, where: str) -> Any:
    """Return the value of a setting from its value in a document.

    A size in bytes may be text such as ``"64MiB"``.

    Raises:
        ConfigError: The value is invalid. The message begins with `where`.
    """
    if declared.is_size and isinstance(value, str):
        plain: Any = parse_size(value)
    else:
        try:
            plain = convert_json(value, declared.document_type)
        except (msgspec.ValidationError, RecursionError):
            plain = None
    try:
        parsed = plain if declared.setting.parse is None or plain is None else declared.setting.parse(plain)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    if plain is None or not declared.accepts(parsed):
        hint = suggestion(value, declared.choices)
        raise ConfigError(f"{refusal(where, declared, value)}{hint}")
    return parsed


def suggestion(value: object, known_names: Iterable[str]) -> str:
    """Return a hint at the most similar known name; "" if none is similar."""
    text = value[:_COMPARED_CHARACTERS_MAX] if isinstance(value, str) else ""
    lowered = {word.lower(): word for word in known_names}
    near = difflib.get_close_matches(text.lower(), lowered, n=1)
    return f"; did you mean {lowered[near[0]]!r}?" if near else ""


def document_schema(title: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a document from the types of its keys.

    A type may be, or contain, a class with declared settings. No key is required.
    """
    entries = [(name, _described(kind) | msgspec.UnsetType, msgspec.UNSET) for name, kind in keys.items()]
    document = msgspec.defstruct("Document", cast("Any", entries), kw_only=True, forbid_unknown_fields=True)
    schema = msgspec.json.schema(document)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema["$defs"].pop("Document"),
        "title": title,
        "$defs": schema["$defs"],
    }


def _described(kind: Any) -> Any:
    """Return a type in which structures with bounds and help stand for classes with settings."""
    arguments: Any = tuple(map(_described, get_args(kind)))
    if get_origin(kind) in (dict, list):
        return get_origin(kind)[arguments]
    return settings_structure(kind) if is_dataclass(kind) else kind


@cache
def settings_structure(kind: Any) -> Any:
    """Return a msgspec structure with the keys of a settings class, with bounds and help."""
    fields: list[Any] = []
    for declared in declared_settings(kind):
        if declared.setting.python_only:
            continue
        described = Annotated[_bounded(declared), msgspec.Meta(description=declared.setting.help)]
        if declared.default is MISSING:
            fields.append((declared.name, described))
        elif declared.default is None:
            fields.append((declared.name, described | msgspec.UnsetType, msgspec.UNSET))
        else:
            fields.append((declared.name, described, _plain(declared.default)))
    return msgspec.defstruct(kind.__name__.lstrip("_"), fields, kw_only=True, forbid_unknown_fields=True)


def _plain(default: Any) -> Any:
    """Return a default as a value of a document."""
    if isinstance(default, Mapping):
        return msgspec.field(default_factory=dict[str, Any])
    return tuple(sorted(cast("frozenset[int]", default))) if isinstance(default, frozenset) else default


def _bounded(declared: DeclaredSetting) -> Any:
    """Return the type of a setting in a document, with its bounds."""
    setting = declared.setting
    bounds = {"ge": setting.least, "gt": setting.above, "le": setting.most}
    limits: Any = {name: value for name, value in bounds.items() if value not in (None, inf)}
    number: Any = Annotated[declared.item or declared.document_type, msgspec.Meta(**limits)]
    if declared.is_size:
        is_positive = setting.above is not None or (setting.least or 0) > 0
        pattern = _SIZE_PATTERN if is_positive else _SIZE_OR_ZERO_PATTERN
        return number | Annotated[str, msgspec.Meta(pattern=pattern)]
    if not limits:
        return declared.document_type
    return number if declared.item is None else tuple[number, ...]
