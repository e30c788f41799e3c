"""The columns of Avro records as Arrow columns."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from headrace.formats.arrow import pyarrow
from headrace.formats.encode import json_text
from headrace.formats.table_files import present_columns

Convert = Callable[[Any], Any]
_VALUE: Final = "value"
"""The name of the only column of a file whose schema is not a record."""
_DECIMAL_DIGITS_MAX: Final = 76
_DECIMAL128_DIGITS_MAX: Final = 38
_UTC: Final = "UTC"
_PRIMITIVES: Final[Mapping[str, Callable[[], Any]]] = {
    "null": pyarrow.null,
    "boolean": pyarrow.bool_,
    "int": pyarrow.int32,
    "long": pyarrow.int64,
    "float": pyarrow.float32,
    "double": pyarrow.float64,
    "bytes": pyarrow.binary,
    "string": pyarrow.string,
}
_LOGICAL: Final[Mapping[tuple[str, str], Any]] = {
    ("int", "date"): pyarrow.date32(),
    ("int", "time-millis"): pyarrow.time32("ms"),
    ("long", "time-micros"): pyarrow.time64("us"),
    ("long", "timestamp-millis"): pyarrow.timestamp("ms", _UTC),
    ("long", "timestamp-micros"): pyarrow.timestamp("us", _UTC),
    ("long", "timestamp-nanos"): pyarrow.timestamp("ns", _UTC),
    ("long", "local-timestamp-millis"): pyarrow.timestamp("ms"),
    ("long", "local-timestamp-micros"): pyarrow.timestamp("us"),
    ("long", "local-timestamp-nanos"): pyarrow.timestamp("ns"),
}
"""The Arrow types of logical types whose values are numbers."""
_INTEGERS: Final = frozenset({"int", "long"})
_NUMBERS: Final = _INTEGERS | {"float", "double"}


def physical_schema(schema: Any) -> Any:
    """Return an Avro schema without its logical types, except decimals that Arrow has."""
    if isinstance(schema, list):
        return [physical_schema(branch) for branch in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    node = cast("dict[str, Any]", schema)
    kept = {key: value for key, value in node.items() if key != "logicalType" or _is_decimal(node)}
    for key in ("type", "items", "values"):
        if key in kept:
            kept[key] = physical_schema(kept[key])
    if node.get("type") == "record":
        kept["fields"] = [{**field, "type": physical_schema(field["type"])} for field in node["fields"]]
    return kept


def _is_decimal(node: Mapping[str, Any]) -> bool:
    digits = node.get("precision")
    return (
        node.get("logicalType") == "decimal"
        and node.get("type") in ("bytes", "fixed")
        and isinstance(digits, int)
        and 0 < digits <= _DECIMAL_DIGITS_MAX
        and 0 <= node.get("scale", 0) <= digits
    )


class AvroColumns:
    """The converter of the records of one file to record batches.

    `schema` is the parsed schema of the file, and `columns` names the columns to keep (None: all). Records
    are decoded by `physical_schema`. Types are those of Arrow with the same values:

    - Records are structs, arrays are lists, and enums are text.
    - Dates, times, timestamps and decimals have their Arrow types. UUIDs are text or bytes.
    - A union of null and a type has nulls. A union of numbers has the widest of them.
    - A union of other types, and a record within itself, is text: the JSON of each value.
    """

    def __init__(self, schema: Any, columns: Sequence[str] | None) -> None:
        node = cast("dict[str, Any]", schema if isinstance(schema, dict) else {})
        self._is_record = node.get("type") == "record"
        types = _Types()
        if self._is_record:
            types.enter(node)
        fields: list[dict[str, Any]] = (
            node["fields"] if self._is_record else [{"name": _VALUE, "type": schema}]
        )
        names = [str(field["name"]) for field in fields]
        kept = present_columns(names, columns) or names
        found = {name: types.find(field["type"]) for name, field in zip(names, fields, strict=True)}
        self._columns = {name: found[name] for name in kept}

    def batch(self, rows: Sequence[Any]) -> Any:
        """Return decoded records as a record batch."""
        arrays: list[Any] = []
        for name, (kind, convert) in self._columns.items():
            values = [row[name] for row in rows] if self._is_record else list(rows)
            if convert is not None:
                values = [convert(value) for value in values]
            arrays.append(pyarrow.array(values, kind))
        return pyarrow.RecordBatch.from_arrays(arrays, names=list(self._columns))


ColumnConversion = tuple[Any, Convert | None]
"""An Arrow type, and the function that makes its values of decoded ones (None: they are its values)."""


class _Types:
    """The Arrow types of Avro schemas, with the named types that were defined before."""

    def __init__(self) -> None:
        self._named: dict[str, ColumnConversion | None] = {}
        """The named types; None while a record is within its definition."""
        self._namespace = ""

    def enter(self, node: dict[str, Any]) -> str:
        """Begin the definition of a named type, and return its full name."""
        name = str(node["name"])
        namespace = name.rpartition(".")[0] or node.get("namespace", self._namespace)
        self._namespace = namespace
        full = f"{namespace}.{name.rpartition('.')[2]}" if namespace else name
        self._named[full] = None
        return full

    def find(self, schema: Any) -> ColumnConversion:
        """Return the Arrow type of a schema."""
        if isinstance(schema, list):
            return self._union(cast("list[Any]", schema))
        if isinstance(schema, str):
            return self._by_name(schema)
        node = cast("dict[str, Any]", schema)
        kind = node["type"]
        if not isinstance(kind, str):
            return self.find(kind)
        if (logical := _LOGICAL.get((kind, node.get("logicalType", "")))) is not None:
            return logical, None
        match kind:
            case "array":
                inner, convert = self.find(node["items"])
                return pyarrow.list_(inner), _each_item(convert)
            case "map":
                inner, convert = self.find(node["values"])
                return pyarrow.map_(pyarrow.string(), inner), _each_value(convert)
            case "record" | "enum" | "fixed":
                return self._define(kind, node)
            case _:
                return (_decimal(node), None) if _is_decimal(node) else self._by_name(kind)

    def _define(self, kind: str, node: dict[str, Any]) -> ColumnConversion:
        around = self._namespace
        full = self.enter(node)
        if kind == "record":
            found = self._record(node)
        elif kind == "enum":
            found = pyarrow.string(), None
        else:
            found = (_decimal(node) if _is_decimal(node) else pyarrow.binary(node["size"])), None
        self._namespace = around
        self._named[full] = found
        return found

    def _record(self, node: dict[str, Any]) -> ColumnConversion:
        members = {str(field["name"]): self.find(field["type"]) for field in node["fields"]}
        kind = pyarrow.struct([(name, inner) for name, (inner, _) in members.items()])
        return kind, _each_member({name: convert for name, (_, convert) in members.items() if convert})

    def _by_name(self, name: str) -> ColumnConversion:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name](), None
        local = f"{self._namespace}.{name}" if self._namespace and "." not in name else name
        found = self._named[local] if local in self._named else self._named[name]
        return found or (pyarrow.string(), _as_json)

    def _union(self, branches: list[Any]) -> ColumnConversion:
        # All branches are visited, since they may define named types.
        found = [(branch, self.find(branch)) for branch in branches if branch != "null"]
        if not found:
            return pyarrow.null(), None
        if len(found) == 1:
            kind, convert = found[0][1]
            return kind, _unless_none(convert)
        names = {branch if isinstance(branch, str) else "" for branch, _ in found}
        if names <= _INTEGERS:
            return pyarrow.int64(), None
        if names <= _NUMBERS:
            return pyarrow.float64(), None
        return pyarrow.string(), _unless_none(_as_json)


def _decimal(node: Mapping[str, Any]) -> Any:
    digits, scale = node["precision"], node.get("scale", 0)
    make = pyarrow.decimal128 if digits <= _DECIMAL128_DIGITS_MAX else pyarrow.decimal256
    return make(digits, scale)


def _as_json(value: Any) -> str:
    return json_text(value).decode()


def _unless_none(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda value: None if value is None else convert(value)


def _each_item(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda values: [convert(value) for value in values]


def _each_value(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda values: {key: convert(value) for key, value in values.items()}


def _each_member(converts: Mapping[str, Convert]) -> Convert | None:
    if not converts:
        return None
    return lambda record: {
        name: converts[name](value) if name in converts else value for name, value in record.items()
    }
