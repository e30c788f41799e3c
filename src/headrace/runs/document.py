"""Read the tables of a spec file, and its ``headrace`` table as the settings of a transform.

Errors name the file, the table and the key. Each key is checked by itself; the settings check the rest.
"""

import json
import logging
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any, Final, TypeVar, cast

from headrace.core.errors import ConfigError
from headrace.core.settings import DeclaredSetting, Setting, declared_settings
from headrace.core.settings_reader import read_value, suggestion
from headrace.runs.media_types import Split, accept_of, kind_of
from headrace.runs.output_settings import OutputFormat
from headrace.runs.settings import SETTINGS_GROUPS, STREAM_SETTINGS, RunSettings
from headrace.storage.uri import parse

T = TypeVar("T")

_SHOWN_CHARACTERS_MAX: Final = 60
_log = logging.getLogger("headrace.runs")
_COUNT: Final = re.compile(r"\d{1,15}", re.ASCII)
_SHARE: Final = re.compile(r"(\d{1,3}(?:\.\d{1,9})?)\s*%", re.ASCII)


def read_document(text: str, name: str) -> dict[str, Any]:
    """Return the document in a TOML or JSON text.

    `name` is the file name; its suffix selects the format.

    Raises ConfigError for another suffix, for invalid syntax or Unicode, for JSON that is not an
    object, and for a duplicate JSON key.
    """
    parse = _PARSERS.get(name.rpartition(".")[2].lower())
    if parse is None or "." not in name:
        raise ConfigError(f"{name}: a spec file's name ends in .toml or .json")
    try:
        text.encode()  # ledgers and reports can hold valid Unicode only
        document = parse(text.removeprefix("\ufeff"))
    except RecursionError:
        raise ConfigError(f"{name}: the tables are nested too deeply") from None
    except ValueError as error:
        kind = "JSON" if name.lower().endswith("json") else "TOML"
        raise ConfigError(f"{name}: invalid {kind}: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{name}: a spec must be an object with fields, not {format_value(document)}")
    return cast("dict[str, Any]", document)


def _json(text: str) -> Any:
    document = json.loads(text, object_pairs_hook=_pairs)
    json.dumps(document, ensure_ascii=False).encode()  # an escape may be a lone surrogate
    return document


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"duplicate key {format_value(key)}")
        found[key] = value
    return found


_PARSERS: Final[Mapping[str, Callable[[str], Any]]] = {"toml": tomllib.loads, "json": _json}


@dataclass(frozen=True, slots=True)
class SpecTable:
    """A table of a spec. `path` is its dotted name; "" is the whole document.

    The methods that read a key return None if the key is absent or null. They raise ConfigError for
    an invalid value.
    """

    file: str
    path: str
    values: Mapping[str, Any]

    @classmethod
    def from_value(cls, file: str, path: str, value: Any, known_names: Iterable[str]) -> "SpecTable":
        """Return a table that has only known keys.

        The error for another key suggests the most similar one.
        """
        if not isinstance(value, dict):
            raise ConfigError(
                f"{file}: {path or 'the spec'} must be a table of fields, not {format_value(value)}"
            )
        table = cls(file, path, {k: v for k, v in cast("dict[str, Any]", value).items() if v is not None})
        fields = tuple(known_names)
        unknown = next((key for key in table.values if key not in fields), None)
        if unknown is not None:
            hint = suggestion(unknown, fields) or (f" (known: {', '.join(sorted(fields))})" if fields else "")
            raise table.error("", f"there is no field {format_value(unknown)}{hint}")
        return table

    def name(self, key: str) -> str:
        """Return a key's dotted name for messages."""
        return ".".join(filter(None, (self.path, key)))

    def error(self, key: str, why: str) -> ConfigError:
        """Return an error that names the file and the field."""
        return ConfigError(": ".join(filter(None, (self.file, self.name(key), why))))

    def has(self, key: str) -> bool:
        """Return True if the table has `key`."""
        return key in self.values

    def table(self, key: str, known_names: Iterable[str]) -> "SpecTable":
        """Return the table below `key`, or an empty one."""
        return SpecTable.from_value(self.file, self.name(key), self.values.get(key, {}), known_names)

    def text(self, key: str, *, characters_max: int | None = None) -> str | None:
        """Return a text that is not empty."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value:
            raise self.error(key, f"must be a non-empty text, not {format_value(value)}")
        if characters_max is not None and len(value) > characters_max:
            raise self.error(key, f"has {len(value)} characters; the limit is {characters_max}")
        return value

    def parsed_text(
        self, key: str, parse: Callable[[str], T], *, characters_max: int | None = None
    ) -> T | None:
        """Return `parse` of a text. Its ConfigError is raised again with the name of the key."""
        value = self.text(key, characters_max=characters_max)
        if value is None:
            return None
        try:
            return parse(value)
        except ConfigError as error:
            raise self.error(key, str(error)) from error

    def checked_text(
        self, key: str, check: Callable[[str], object], *, characters_max: int | None = None
    ) -> str | None:
        """Return a text unchanged after `check`, which raises ConfigError for an invalid one."""
        self.parsed_text(key, check, characters_max=characters_max)
        return self.text(key)

    def integer(self, key: str, minimum: int, maximum: int | None = None) -> int | None:
        """Return an integer from `minimum` to `maximum`."""
        value = self.values.get(key)
        if value is None:
            return None
        if type(value) is not int or value < minimum or (maximum is not None and value > maximum):
            span = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
            raise self.error(key, f"must be a whole number {span}, not {format_value(value)}")
        return value

    def flag(self, key: str) -> bool | None:
        """Return a boolean."""
        value = self.values.get(key)
        if value is not None and type(value) is not bool:
            raise self.error(key, f"must be true or false, not {format_value(value)}")
        return value

    def choice(self, key: str, choices: Mapping[str, T]) -> T | None:
        """Return the value that one of the words stands for."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or value not in choices:
            raise self.error(
                key,
                f"must be one of {', '.join(choices)}, not {format_value(value)}{suggestion(value, choices)}",
            )
        return choices[value]

    def array(self, key: str) -> Sequence[Any] | None:
        """Return a list of any values."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, list):
            raise self.error(key, f"must be a list, not {format_value(value)}")
        return cast("list[Any] | None", value)


def format_value(value: Any) -> str:
    """Return any value as short, printable text for a message."""
    try:
        text = ascii(value) if not isinstance(value, str) else repr(value)
    except (
        RecursionError,
        ValueError,
    ):  # too deeply nested, or an integer of too many digits
        return f"this {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[:_SHOWN_CHARACTERS_MAX]}…"


def _checked_uri(text: str) -> str:
    parse(text)
    return text


def _checked_content_type(text: str) -> str:
    kind_of(text)
    return text


def parse_max_failed(text: str | int | None) -> tuple[int | None, float | None]:
    """Return (failed_rows_max, failed_share_max) of a count ``100`` or a share ``"1%"``; one is None.

    ``"none"`` is a share of 1, no limit. Both are None without a value. Raises ConfigError for any
    other value.
    """
    if text is None:
        return None, None
    if not isinstance(text, str):
        text = str(text)
    if _COUNT.fullmatch(text.strip()):
        return int(text), None
    if text.strip() == "none":
        return None, 1.0
    share = _SHARE.fullmatch(text.strip())
    if share is None or float(share[1]) > 100:
        raise ConfigError(
            f"{format_value(text)} is neither a count of failed records such as 100, nor a share such as 1%, "
            "nor none for no limit"
        )
    return None, float(share[1]) / 100


IN_FLIGHT_MAX: Final = Setting(
    "Limit of concurrent requests to the endpoint.", old_names=("in_flight", "max_concurrent"), least=1
)
REQUEST_TIMEOUT_S: Final = Setting("Timeout of a request to the endpoint in seconds.", above=0, most=inf)


@dataclass(frozen=True, slots=True)
class SpecKeys:
    """The keys of the table that are not settings of the run. None stands for an absent key."""

    model: Annotated[
        str | None, Setting("Model: a file, folder, archive, class or URI.", metavar="MODEL")
    ] = None
    model_options: Annotated[
        dict[str, Any] | None, Setting("Options of the model, as -O sets them.", metavar="TABLE")
    ] = None
    source: Annotated[
        str | None, Setting("Source: an object, prefix, glob or manifest.", parse=_checked_uri)
    ] = None
    output: Annotated[str | None, Setting("Destination: a folder or prefix.", parse=_checked_uri)] = None
    job_name: Annotated[str | None, Setting("Name of the job.")] = None
    instances: Annotated[
        int | None, Setting("Number of workers, if the command line sets none.", least=1)
    ] = None
    in_flight_max: Annotated[int | None, IN_FLIGHT_MAX] = None
    timeout_s: Annotated[float | None, REQUEST_TIMEOUT_S] = None
    retries: Annotated[int | None, Setting("Number of retries of a request.", least=0)] = None
    content_type: Annotated[
        str | None,
        Setting(
            "Content type of objects: text/csv, application/json, …, or csv, json, jsonl, v2, text, image, "
            "audio, video.",
            default="by file name",
            metavar="TYPE",
            parse=_checked_content_type,
        ),
    ] = None
    split: Annotated[
        Split | None,
        Setting(
            "Splitting of objects into records; none makes one record.", default="by content type or name"
        ),
    ] = None
    accept: Annotated[
        OutputFormat | None,
        Setting(
            "Format of the outputs; auto is v2 for v2 requests, jsonl for JSON records, else csv.",
            default="auto",
            written=str,
            parse=accept_of,
        ),
    ] = None
    strict: Annotated[
        bool | None,
        Setting("Write no output for an object with a failed record, as SageMaker does."),
    ] = None
    max_failed: Annotated[
        tuple[int | None, float | None] | None,
        Setting(
            "Limit of failed records, as a count or a share such as 1%; above it the run stops.",
            default="10,000 records or 64 MiB of them, and more than 50% of all; none for no limit",
            metavar="N|P%|none",
            expected='a count of failed records such as 100, a share such as "1%", or "none"',
            written=str | int,
            parse=parse_max_failed,
        ),
    ] = None


_OTHER_WORDS: Final = frozenset({"format", "output_format"})
"""Settings for which a spec has SageMaker's words: content_type, split and accept."""

_RUN_SETTINGS: Final = {
    declared.name: declared
    for kind in (*SETTINGS_GROUPS, RunSettings)
    for declared in declared_settings(kind)
    if not declared.setting.python_only and declared.name not in STREAM_SETTINGS | _OTHER_WORDS
}
EXTENSION_SETTINGS: Final[Mapping[str, DeclaredSetting]] = {
    **{declared.name: declared for declared in declared_settings(SpecKeys)},
    **_RUN_SETTINGS,
}
"""The settings of the table by key."""
EXTENSION_FIELDS: Final = tuple(EXTENSION_SETTINGS)
"""The keys of the table."""
_RENAMED: Final = {
    old: name for name, declared in EXTENSION_SETTINGS.items() for old in declared.setting.old_names
}
"""Old names of keys, for one release."""


@dataclass(frozen=True, slots=True)
class SpecExtension:
    """The ``headrace`` table: its own keys, and the settings of the run by their names."""

    keys: SpecKeys
    run: Mapping[str, Any]

    def values_for(self, kind: type) -> dict[str, Any]:
        """Return the values for a class of settings, by field."""
        return {
            declared.field: self.run[declared.name]
            for declared in declared_settings(kind)
            if declared.name in self.run
        }

    def set_fields(self, *names: str) -> frozenset[str]:
        """Return those of the keys that the table sets."""
        return frozenset(
            name for name in names if name in self.run or getattr(self.keys, name, None) is not None
        )


def rename_old_fields(table: Any) -> Any:
    """Return the table with new names of its fields, and log a warning for each old one."""
    if not isinstance(table, dict):
        return table
    values = cast("dict[str, Any]", table)
    old = {name: value for name, value in values.items() if name in _RENAMED}
    for name in old:
        _log.warning("headrace.%s is deprecated: use headrace.%s", name, _RENAMED[name])
    renamed = {_RENAMED[name]: value for name, value in old.items()}
    return renamed | {name: value for name, value in values.items() if name not in old}


def read_extension(table: SpecTable) -> SpecExtension:
    """Return the ``headrace`` table. Raises ConfigError for a wrong type or an invalid value."""
    values = {
        name: read_value(EXTENSION_SETTINGS[name], value, f"{table.file}: {table.name(name)}")
        for name, value in table.values.items()
    }
    run = {name: value for name, value in values.items() if name in _RUN_SETTINGS}
    return SpecExtension(SpecKeys(**{name: value for name, value in values.items() if name not in run}), run)
