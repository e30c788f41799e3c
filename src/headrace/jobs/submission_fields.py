"""The fields of a submission: permitted values, and the messages for invalid ones."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import orjson

from headrace.core.errors import ConfigError, DataError, LimitError
from headrace.jobs.job import KINDS, PRIORITY_FIRST, PRIORITY_LAST
from headrace.storage.regions import require_region
from headrace.storage.uri import parse

SHOWN_CHARS: Final = 80
KEY_CHARS_MAX: Final = 512
URI_CHARS_MAX: Final = 4096

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MODEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}(@[A-Za-z0-9._-]{1,64})?")
_MEDIA: Final = re.compile(r"[\x20-\x7e]{3,255}")
_ID: Final = re.compile(r"[\x21-\x7e]{1,255}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class SubmissionLimits:
    """The limits of a submission."""

    inline_bytes_max: int = 8 << 20
    """The size of a payload in the submission."""
    depth_max: int = 64
    options_bytes_max: int = 64 << 10
    tags_max: int = 32
    tag_chars_max: int = 256
    notify_max: int = 8
    attempts_max: int = 100
    seconds_max: float = 366 * 86_400.0
    """The limit of delays, times to live and deadlines."""
    time_limit_s_max: float = 30 * 86_400.0


Read = Callable[[str, Any, SubmissionLimits], Any]


@dataclass(frozen=True, slots=True)
class SubmissionField:
    """The reader of a field, and the field of `NewJob` that it sets."""

    read: Read
    into: str


def format_value(value: Any) -> str:
    """Return the beginning of a value on one line, for a message."""
    text = ascii(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


def check_nesting(value: Any, depth_max: int) -> None:
    """Raise LimitError for JSON that is nested deeper than `depth_max`."""
    level: list[Any] = [value]
    for _ in range(depth_max):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below += cast("dict[str, Any]", item).values()
            elif isinstance(item, list):
                below += cast("list[Any]", item)
        if not below:
            return
        level = below
    raise LimitError(f"the JSON is nested deeper than {depth_max} levels")


def _wrong(name: str, what: str, value: Any) -> DataError:
    return DataError(f"{name}: must be {what}, not {format_value(value)}")


def _matching(pattern: re.Pattern[str], what: str) -> Read:
    def read(name: str, value: Any, _limits: SubmissionLimits) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise _wrong(name, what, value)
        return value

    return read


def _kind(name: str, value: Any, _limits: SubmissionLimits) -> str:
    if value not in KINDS:
        raise _wrong(name, f"one of {', '.join(KINDS)}", value)
    return value


def _uri(name: str, value: Any, _limits: SubmissionLimits) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(name, "a URI", value)
    if len(value) > URI_CHARS_MAX:
        raise LimitError(f"{name}: is longer than {URI_CHARS_MAX} characters")
    if _CONTROL.search(value) or value != value.strip():
        raise _wrong(name, "a URI without control characters, and without spaces at its ends", value)
    try:
        parse(value)
    except ConfigError as error:
        raise DataError(f"{name}: {error}") from None
    return value


def _key(name: str, value: Any, _limits: SubmissionLimits) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= KEY_CHARS_MAX or _CONTROL.search(value):
        raise _wrong(
            name, f"a name of at most {KEY_CHARS_MAX} characters, none of them a control character", value
        )
    return value


def _region(name: str, value: Any, _limits: SubmissionLimits) -> str:
    if not isinstance(value, str):
        raise _wrong(name, "a label, such as eu-west-1", value)
    try:
        return require_region(value)
    except ConfigError as error:
        raise DataError(f"{name}: {error}") from None


def _whole(first: int, last: Callable[[SubmissionLimits], int]) -> Read:
    def read(name: str, value: Any, limits: SubmissionLimits) -> int:
        fits = isinstance(value, int) and not isinstance(value, bool)
        if not fits or not first <= value <= last(limits):
            raise _wrong(name, f"a whole number from {first} to {last(limits)}", value)
        return value

    return read


def _seconds(last: Callable[[SubmissionLimits], float], *, zero: bool = False) -> Read:
    def read(name: str, value: Any, limits: SubmissionLimits) -> float:
        most = last(limits)
        what = f"seconds, {'from 0' if zero else 'more than 0'} to {most:.0f}"
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise _wrong(name, what, value)
        if not (value >= 0 if zero else value > 0) or value > most:
            raise _wrong(name, what, value)
        return float(value)

    return read


def _delay_ms(name: str, value: Any, limits: SubmissionLimits) -> int:
    return round(_seconds(lambda limits: limits.seconds_max, zero=True)(name, value, limits) * 1000)


def _options(name: str, value: Any, limits: SubmissionLimits) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(name, "a JSON object", value)
    _bounded_json(name, value, limits)
    return cast("dict[str, Any]", value)


def _notify(name: str, value: Any, limits: SubmissionLimits) -> tuple[Mapping[str, Any], ...]:
    items = cast("list[Any]", value) if isinstance(value, list) else None
    if items is None or not all(isinstance(item, dict) for item in items):
        raise _wrong(name, "a list of JSON objects", value)
    if len(items) > limits.notify_max:
        raise LimitError(f"{name}: {len(items)} entries exceed the limit of {limits.notify_max}")
    _bounded_json(name, items, limits)
    return tuple(items)


def _bounded_json(name: str, value: Any, limits: SubmissionLimits) -> None:
    text = orjson.dumps(value)
    if len(text) > limits.options_bytes_max:
        raise LimitError(f"{name}: {len(text)} bytes of JSON exceed the limit of {limits.options_bytes_max}")
    # Databases do not accept NUL in a text.
    if b"\\u0000" in text.replace(b"\\\\", b""):
        raise DataError(f"{name}: contains a NUL character")


def _tags(name: str, value: Any, limits: SubmissionLimits) -> Mapping[str, str]:
    if not isinstance(value, dict):
        raise _wrong(name, "a JSON object of strings", value)
    tags = cast("dict[str, Any]", value)
    if len(tags) > limits.tags_max:
        raise LimitError(f"{name}: {len(tags)} tags exceed the limit of {limits.tags_max}")
    for tag, text in tags.items():
        if not _NAME.fullmatch(tag):
            raise _wrong(name, "named with letters, digits, dots, dashes and underscores, 128 at most", tag)
        if not isinstance(text, str) or _CONTROL.search(text):
            raise _wrong(f"{name}.{tag}", "a string without control characters", text)
        if len(text) > limits.tag_chars_max:
            raise LimitError(f"{name}.{tag}: is longer than {limits.tag_chars_max} characters")
    return cast("dict[str, str]", tags)


_name = _matching(_NAME, "a letter or digit, then letters, digits, dots, dashes and underscores, 128 at most")
_media = _matching(_MEDIA, "a media type of printable ASCII, 255 characters at most")
_period = _seconds(lambda limits: limits.seconds_max)

FIELDS: Final[Mapping[str, SubmissionField]] = {
    "model": SubmissionField(_matching(_MODEL, "a model's name, optionally with @ and a version"), "model"),
    "kind": SubmissionField(_kind, "kind"),
    "queue": SubmissionField(_name, "queue"),
    "input_uri": SubmissionField(_uri, "input_uri"),
    "content_type": SubmissionField(_media, "content_type"),
    "accept": SubmissionField(_media, "accept"),
    "output_uri": SubmissionField(_uri, "output_uri"),
    "key": SubmissionField(_key, "key"),
    "region": SubmissionField(_region, "region"),
    "options": SubmissionField(_options, "options"),
    "priority": SubmissionField(_whole(PRIORITY_FIRST, lambda _: PRIORITY_LAST), "priority"),
    "delay_s": SubmissionField(_delay_ms, "delay_ms"),
    "attempts_max": SubmissionField(_whole(1, lambda limits: limits.attempts_max), "attempts_max"),
    "time_limit_s": SubmissionField(_seconds(lambda limits: limits.time_limit_s_max), "time_limit_s"),
    "time_to_live_s": SubmissionField(_period, "time_to_live_s"),
    "deadline_s": SubmissionField(_period, "deadline_s"),
    "tags": SubmissionField(_tags, "tags"),
    "notify": SubmissionField(_notify, "notify"),
    "correlation_id": SubmissionField(
        _matching(_ID, "1 to 255 printable ASCII characters without spaces"), "correlation_id"
    ),
}
"""All fields except `input`, by their names in JSON and in a query."""

SHAPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(FIELDS, "text"),
    **dict.fromkeys(("priority", "attempts_max"), "a whole number"),
    **dict.fromkeys(("delay_s", "time_limit_s", "time_to_live_s", "deadline_s"), "a number of seconds"),
    "options": "a JSON object",
    "tags": "a JSON object of strings",
    "notify": "a list of JSON objects",
}
"""The type of each field in a query, in words."""
