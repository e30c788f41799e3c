"""Read the ``headrace`` table of a spec file: the settings of a transform, and plainer words.

Each key is checked by itself, by its declaration; the settings check the rest.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any, Final, cast

from headrace.core.errors import ConfigError
from headrace.core.settings import DeclaredSetting, Setting, declared_settings
from headrace.core.settings_reader import read_value
from headrace.runs.document import SpecTable, format_value
from headrace.runs.media_types import Split, accept_of, kind_of
from headrace.runs.settings import (
    SETTINGS_GROUPS,
    STREAM_SETTINGS,
    OutputFormat,
    RunSettings,
)
from headrace.storage.uri import parse

_log = logging.getLogger("headrace.runs")

_COUNT: Final = re.compile(r"\d{1,15}", re.ASCII)
_SHARE: Final = re.compile(r"(\d{1,3}(?:\.\d{1,9})?)\s*%", re.ASCII)


def _checked_uri(text: str) -> str:
    parse(text)
    return text


def _checked_content_type(text: str) -> str:
    kind_of(text)
    return text


def parse_max_failed(text: str | int | None) -> tuple[int | None, float | None]:
    """Return (failed_rows_max, failed_share_max) of a count ``100`` or a share ``"1%"``; one is None.

    Both are None without a value. Raises ConfigError for any other value.
    """
    if text is None:
        return None, None
    if not isinstance(text, str):
        text = str(text)
    if _COUNT.fullmatch(text.strip()):
        return int(text), None
    share = _SHARE.fullmatch(text.strip())
    if share is None or float(share[1]) > 100:
        raise ConfigError(
            f"{format_value(text)} is neither a count of failed records such as 100, nor a share such as 1%"
        )
    return None, float(share[1]) / 100


IN_FLIGHT_MAX: Final = Setting(
    "Limit of concurrent requests to the endpoint.", old_names=("in_flight", "max_concurrent"), least=1
)
REQUEST_TIMEOUT_S: Final = Setting("Timeout of a request to the endpoint in seconds.", above=0, most=inf)


@dataclass(frozen=True, slots=True)
class SpecKeys:
    """The keys of the table that are not settings of the run. None stands for an absent key."""

    model: Annotated[str | None, Setting("Model: a file, folder or class.", metavar="MODEL")] = None
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
            "Content type of objects: text/csv, application/json, …, or csv, json, jsonl, text, image, "
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
            "Format of the outputs; auto is jsonl for JSON records, else csv.",
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
            metavar="N|P%",
            expected='a count of failed records such as 100, or a share such as "1%"',
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
