"""A spec file's text as tables with typed values; whatever is wrong is told with the file, the table and the key."""

import difflib
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from headrace.core.errors import ConfigError

T = TypeVar("T")

_SIZE: Final = re.compile(r"(\d{1,15})(?:\s*([kmg])(?:i?b)?)?", re.IGNORECASE | re.ASCII)
_SCALES: Final = {None: 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SHOWN_CHARACTERS_MAX: Final = 60
_NEAR: Final = 0.6


def read_document(text: str, name: str) -> dict[str, Any]:
    """The document in a TOML or JSON text; `name` is its file's, and its end (``.toml``, ``.json``) tells which.

    ConfigError for any other name, for what does not parse or is no Unicode, for a JSON text that is no object or says
    a key twice.
    """
    parse = _PARSERS.get(name.rpartition(".")[2].lower())
    if parse is None or "." not in name:
        raise ConfigError(f"{name}: a spec file's name ends in .toml or .json")
    try:
        text.encode()  # what is no Unicode could stand in no ledger or report
        document = parse(text)
    except RecursionError:
        raise ConfigError(f"{name}: its tables are nested too deeply to be a spec") from None
    except ValueError as error:
        kind = "JSON" if name.lower().endswith("json") else "TOML"
        raise ConfigError(f"{name}: it is no {kind}: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{name}: a spec is an object of fields, not {shown(document)}")
    return cast("dict[str, Any]", document)


def _toml(text: str) -> Any:
    return tomllib.loads(text.removeprefix("\ufeff"))


def _json(text: str) -> Any:
    document = json.loads(text.removeprefix("\ufeff"), object_pairs_hook=_pairs)
    json.dumps(document, ensure_ascii=False).encode()  # an escape may be half a character, too
    return document


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {shown(key)} is there twice")
        found[key] = value
    return found


_PARSERS: Final = {"toml": _toml, "json": _json}


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a spec. `path` is its dotted name, "" for the whole document.

    Every method that reads a key gives None where it is not there (or is null, as JSON has it), and raises ConfigError
    for what the key cannot be.
    """

    file: str
    path: str
    values: Mapping[str, Any]

    @classmethod
    def of(cls, file: str, path: str, value: Any, known: Iterable[str]) -> "Table":
        """A table that has no other keys than `known`; an unknown one is told with its nearest known name."""
        if not isinstance(value, dict):
            raise ConfigError(f"{file}: {path or 'the spec'} must be a table of fields, not {shown(value)}")
        table = cls(file, path, {k: v for k, v in cast("dict[str, Any]", value).items() if v is not None})
        fields = tuple(known)
        unknown = next((key for key in table.values if key not in fields), None)
        if unknown is not None:
            raise table.wrong("", f"there is no field {shown(unknown)}{_instead(unknown, fields)}")
        return table

    def name(self, key: str) -> str:
        """A key's dotted name, as messages have it."""
        return ".".join(filter(None, (self.path, key)))

    def wrong(self, key: str, why: str) -> ConfigError:
        """The error that says which file and field it is about."""
        return ConfigError(": ".join(filter(None, (self.file, self.name(key), why))))

    def has(self, key: str) -> bool:
        """Whether it says something of `key`."""
        return key in self.values

    def table(self, key: str, known: Iterable[str]) -> "Table":
        """The table below `key`; an empty one where there is none."""
        return Table.of(self.file, self.name(key), self.values.get(key, {}), known)

    def text(self, key: str, *, characters_max: int | None = None) -> str | None:
        """Text that is not empty."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value:
            raise self.wrong(key, f"must be text that is not empty, not {shown(value)}")
        if characters_max is not None and len(value) > characters_max:
            raise self.wrong(key, f"has {len(value)} characters, and at most {characters_max} are allowed")
        return value

    def parsed(self, key: str, parse: Callable[[str], T], *, characters_max: int | None = None) -> T | None:
        """What `parse` makes of a text; what it says with ConfigError is told of this key."""
        value = self.text(key, characters_max=characters_max)
        if value is None:
            return None
        try:
            return parse(value)
        except ConfigError as error:
            raise self.wrong(key, str(error)) from error

    def checked(
        self, key: str, check: Callable[[str], object], *, characters_max: int | None = None
    ) -> str | None:
        """A text as it stands, which `check` takes without ConfigError."""
        self.parsed(key, check, characters_max=characters_max)
        return self.text(key)

    def whole(self, key: str, least: int, most: int | None = None) -> int | None:
        """A whole number from `least` to `most`."""
        value = self.values.get(key)
        if value is None:
            return None
        if type(value) is not int or value < least or (most is not None and value > most):
            raise self.wrong(key, f"must be a whole number {_range(least, most)}, not {shown(value)}")
        return value

    def number(self, key: str, least: float, most: float | None = None) -> float | None:
        """A number from `least` to `most`."""
        value = self.values.get(key)
        if value is None:
            return None
        bound = float("inf") if most is None else most
        # Also false for what is no number at all, and infinity is none that anything here could be.
        if type(value) not in (int, float) or not least <= value <= bound or value == float("inf"):
            raise self.wrong(key, f"must be a number {_range(least, most)}, not {shown(value)}")
        return float(value)

    def flag(self, key: str) -> bool | None:
        """True or false."""
        value = self.values.get(key)
        if value is not None and type(value) is not bool:
            raise self.wrong(key, f"must be true or false, not {shown(value)}")
        return value

    def word(self, key: str, words: Mapping[str, T]) -> T | None:
        """What one of some words means."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or value not in words:
            raise self.wrong(
                key, f"must be one of {', '.join(words)}, not {shown(value)}{_instead(value, words)}"
            )
        return words[value]

    def listed(self, key: str) -> Sequence[Any] | None:
        """A list, of whatever."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, list):
            raise self.wrong(key, f"must be a list, not {shown(value)}")
        return cast("list[Any] | None", value)

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of texts that are not empty."""
        value = self.listed(key)
        if value is None:
            return None
        if not all(isinstance(item, str) and item for item in value):
            raise self.wrong(key, f"must be a list of texts, not {shown(value)}")
        return tuple(value)

    def size_bytes(self, key: str) -> int | None:
        """A size in bytes: a whole number, or text such as ``"64MiB"``; units are powers of 1024."""
        value = self.values.get(key)
        if value is None:
            return None
        match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
        size = int(match[1]) * _SCALES[match[2].lower() if match[2] else None] if match else value
        if type(size) is not int or size < 1:
            raise self.wrong(
                key, f'must be a size of at least 1 byte, as 1000 or "64MiB", not {shown(value)}'
            )
        return size


def shown(value: Any) -> str:
    """A value as a message has it: short, and printable whatever it holds."""
    try:
        text = ascii(value) if not isinstance(value, str) else repr(value)
    except (
        RecursionError,
        ValueError,
    ):  # nested as deeply as was just parsed; or a number of too many digits
        return f"this {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[:_SHOWN_CHARACTERS_MAX]}…"


def _instead(value: Any, known: Iterable[str]) -> str:
    """Of what is known, what was most likely meant."""
    lowered = {word.lower(): word for word in known}
    near = difflib.get_close_matches(str(value)[:_SHOWN_CHARACTERS_MAX].lower(), lowered, n=1, cutoff=_NEAR)
    if near:
        return f"; did you mean {lowered[near[0]]!r}?"
    return f" (there are {', '.join(sorted(lowered.values()))})" if lowered else ""


def _range(least: float, most: float | None) -> str:
    return f"of at least {least}" if most is None else f"from {least} to {most}"
