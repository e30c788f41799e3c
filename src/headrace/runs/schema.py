"""The schema of a run's records: the columns of each format, as a sample, a file or the ledger has them.

A sample decides by majority (`headrace.runs.infer`), so one unusual record has no effect. All workers and
resumptions judge records by the same schema.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, TypeVar

import msgspec
import orjson

from headrace.core.errors import ConfigError
from headrace.core.tensor import TensorSpec
from headrace.reports.markup import pluralize
from headrace.runs.settings import RunSettings

AnySettings = TypeVar("AnySettings", bound=RunSettings)
ColumnType = Literal["boolean", "integer", "number", "text", "object", "null", "bytes"]
"""The type of a column's values.

"object" is a nested JSON object; "null" means that all are missing; "bytes" is a file, such as an image.
"""
NUMERIC: Final[frozenset[ColumnType]] = frozenset({"boolean", "integer", "number"})
SCHEMA_VERSION: Final = 1
_COLUMNS_SHOWN: Final = 12
_DATATYPES: Final[Mapping[ColumnType, str]] = {"boolean": "BOOL", "integer": "INT64", "number": "FP64"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, a field of JSON objects, or a feature of messages.

    `name` is None for CSV without a header, and for JSON records that are no objects. `shape` is that of
    one value: () for a single value. `nulls` is the number of sampled records without a value.
    """

    name: str | None = None
    type: ColumnType = "text"
    shape: tuple[int, ...] = ()
    nulls: int = 0


def columns_names(columns: Sequence[Column]) -> list[str]:
    """Return the names of columns as outputs have them: the number of a column without a name."""
    return [str(number) if column.name is None else column.name for number, column in enumerate(columns)]


@dataclass(frozen=True, slots=True)
class RecordSchema:
    """The columns of the records of one format.

    Attributes:
        format: The name of the format, such as "csv".
        columns: The columns in order; none for formats without columns, and if no record has any.
        delimiter: The delimiter of CSV records.
        widths: The numbers of CSV columns in the sample, with their records, the most frequent first.
        records: The number of sampled records.
        place: The position of the first sampled record.
        problem: The reason why no sampled record has columns.
    """

    format: str
    columns: tuple[Column, ...] = ()
    delimiter: str = ""
    widths: Mapping[int, int] = field(default_factory=dict[int, int])
    records: int = 0
    place: str = ""
    problem: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns; empty if they have none."""
        return tuple(column.name for column in self.columns if column.name is not None)

    @property
    def written_columns(self) -> tuple[Column, ...]:
        """The columns that outputs may have: all but files."""
        return tuple(column for column in self.columns if column.type != "bytes")

    @property
    def is_whole(self) -> bool:
        """True if records are single values without a name, such as JSON arrays, or have no columns."""
        return not self.names

    def column(self, name: str) -> Column | None:
        """Return the column with this name, or None."""
        return next((column for column in self.columns if column.name == name), None)

    def text(self) -> str:
        """Return one line for people: the format, the columns and the size of the sample."""
        parts = [self.format]
        if self.columns:
            parts[0] += f", {pluralize(len(self.columns), 'column')}"
            parts.append(_columns_text(self.columns))
        sampled = f" (from {pluralize(self.records, 'record')})" if self.records else ""
        return ": ".join(parts) + sampled

    def as_inputs(self) -> dict[int, TensorSpec]:
        """Return the columns that every record has, by number, as inputs of a model of their types.

        Columns of nested objects, and fields with a dot in their name, are left out.
        """
        found: dict[int, TensorSpec] = {}
        for number, column in enumerate(self.columns):
            name = f"column {number}" if column.name is None else column.name
            if not column.nulls and column.type not in ("object", "null") and "." not in name:
                datatype = _DATATYPES.get(column.type, "BYTES")
                found[number] = TensorSpec(name, datatype, (-1, *column.shape))
        return found


def _columns_text(columns: Sequence[Column]) -> str:
    shown: list[str] = []
    for column in columns[:_COLUMNS_SHOWN]:
        shape = f"[{' x '.join(map(str, column.shape))}]" if column.shape else ""
        shown.append(f"{'' if column.name is None else column.name + ' '}{column.type}{shape}")
    if (
        len(set(shown)) == 1 < len(columns) <= _COLUMNS_SHOWN
        or len({replace(c, nulls=0) for c in columns}) == 1
    ):
        return shown[0]
    return ", ".join(shown) + (", …" if len(columns) > _COLUMNS_SHOWN else "")


@dataclass(frozen=True, slots=True)
class Schema:
    """The schemas of all formats of a source, those of its first objects first. Empty if nothing is known."""

    formats: tuple[RecordSchema, ...] = ()

    def find(self, format: str) -> RecordSchema | None:
        """Return the schema of a format, or None if it is not known."""
        return next((found for found in self.formats if found.format == format), None)

    def plus(self, found: RecordSchema) -> "Schema":
        """Return the schema with another format."""
        return Schema((*self.formats, found))

    @property
    def column_names(self) -> tuple[str, ...] | None:
        """The names of CSV columns, or None if there is no header."""
        csv = self.find("csv")
        return (csv.names or None) if csv else None

    def apply_to(self, settings: AnySettings) -> AnySettings:
        """Return the settings with the names of CSV columns, by which `header` "auto" finds headers.

        Names that the settings have stay.
        """
        names, read = self.column_names, settings.read
        if not names or read.header != "auto" or read.names:
            return settings
        return replace(settings, read=replace(read, names=names))

    def text(self) -> str:
        """Return one line for people for each format."""
        return "\n".join(found.text() for found in self.formats)

    def to_json(self) -> dict[str, Any]:
        """Return the schema as JSON: the document that ``--schema FILE`` reads."""
        return {"version": SCHEMA_VERSION, **msgspec.to_builtins(self, str_keys=True)}


def parse_schema(text: bytes, name: str) -> Schema:
    """Return the schema of a user's JSON document. `name` names it in messages.

    Raises ConfigError for an invalid document. Unknown keys are invalid.
    """
    try:
        return schema_from_json(text)
    except (ValueError, msgspec.ValidationError) as error:
        raise ConfigError(
            f"{name}: not a schema: {error}. headrace inspect SOURCE --save-schema FILE writes one"
        ) from None


def schema_from_json(text: bytes) -> Schema:
    """Return the schema of a JSON document. Raises ValueError or ValidationError for an invalid one."""
    document = msgspec.convert(orjson.loads(text), dict[str, Any])
    _check_keys(document)
    schema = msgspec.convert(document, Schema, str_keys=True)
    formats = [one.format for one in schema.formats]
    if len(set(formats)) < len(formats):
        raise ValueError(f"a format is there twice: {', '.join(formats)}")
    csv = schema.find("csv")
    if csv is not None and (not csv.columns or 0 < len(csv.names) < len(csv.columns)):
        raise ValueError("csv needs columns, all of them with a name or none of them")
    return schema


def _check_keys(document: dict[str, Any]) -> None:
    """Raise ValidationError for another version, or for keys that no field has: msgspec ignores them."""
    version = document.pop("version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise msgspec.ValidationError(f"version {version!r} is not {SCHEMA_VERSION}")
    records = msgspec.convert(document.get("formats", []), list[dict[str, Any]])
    columns = [
        column
        for record in records
        for column in msgspec.convert(record.get("columns", []), list[dict[str, Any]])
    ]
    for kind, parts in ((Schema, [document]), (RecordSchema, records), (Column, columns)):
        known = [field.name for field in fields(kind)]
        unknown = [key for part in parts for key in part if key not in known]
        if unknown:
            raise msgspec.ValidationError(f"unknown key {unknown[0]!r}: the keys are {', '.join(known)}")
