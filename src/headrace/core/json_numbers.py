"""Whole numbers of JSON documents. JSON has one type of number: 5.0 is an integer, as in JSON Schema."""

from functools import cache
from typing import Any, cast

import msgspec
from msgspec import inspect


def whole_number(value: object) -> object:
    """Return a float without a fraction as an integer, and any other value unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def convert_json(value: Any, kind: Any) -> Any:
    """Return a decoded JSON value as an object of a type.

    A number without a fraction, such as ``5.0``, is an integer where the type has one. Values of the
    type `Any` stay as they are. Raise msgspec.ValidationError for a value that does not fit.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return msgspec.convert(_with_integers(value, _described(kind)), kind)


@cache
def _described(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _with_integers(value: Any, kind: inspect.Type) -> Any:
    """Return a value with integers in the place of whole floats, where the type has integers."""
    match kind:
        case inspect.IntType():
            return whole_number(value)
        case inspect.Metadata():
            return _with_integers(value, kind.type)
        case inspect.UnionType() if not any(isinstance(each, inspect.FloatType) for each in kind.types):
            for each in kind.types:
                value = _with_integers(value, each)
        case inspect.ListType() | inspect.VarTupleType() if isinstance(value, list):
            return [_with_integers(item, kind.item_type) for item in cast("list[Any]", value)]
        case inspect.StructType() if isinstance(value, dict):
            known = {field.encode_name: field.type for field in kind.fields}
            return {
                name: _with_integers(item, known[name]) if name in known else item
                for name, item in cast("dict[str, Any]", value).items()
            }
        case _:
            pass
    return value
