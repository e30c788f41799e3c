"""Options of models: plain values by name, from a settings file or another process."""

import inspect
import keyword
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import orjson

from headrace.core.errors import ConfigError
from headrace.core.tensor import TensorSpec, dtype_of

Options = dict[str, Any]


def plain_options(options: Mapping[str, Any] | None, where: str) -> Options:
    """Return a copy of JSON values only. Raises ConfigError with the first option that is not one."""
    if not options:
        return {}
    for name, value in options.items():
        try:
            orjson.dumps({name: value})
        except TypeError as error:
            raise ConfigError(
                f"{where}: option {name!r} must be a plain value "
                f"(text, a number, true or false, a list, a table): {error}"
            ) from None
    return orjson.loads(orjson.dumps(dict(options)))


def option_names(make: Callable[..., Any]) -> tuple[str, ...] | None:
    """Return the keyword arguments of a class or function, or None if it takes any."""
    parameters = inspect.signature(make).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(p.name.removesuffix("_") for p in parameters if p.kind in kinds)


def keyword_arguments(options: Options, known: Sequence[str] | None, where: str) -> Options:
    """Return the options as keyword arguments; `class` becomes ``class_``.

    Raises ConfigError for an unknown option.
    """
    if known is not None and (unknown := [name for name in options if name not in known]):
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise ConfigError(f"{where} has no option {', '.join(map(repr, unknown))}; {has}")
    return {f"{name}_" if keyword.iskeyword(name) else name: value for name, value in options.items()}


def tensor_specs(option: object, name: str, where: str) -> tuple[TensorSpec, ...]:
    """Return the specs of an option with a list of tensors.

    For example: ``inputs = [{name = "x", datatype = "FP32", shape = [-1, 4]}]``.

    `shape` is optional. If present, it begins with the axis of rows. Raises ConfigError.
    """
    if option is None:
        return ()
    example = (
        f"{where}: option {name!r} must be a list such as "
        '[{name = "x", datatype = "FP32", shape = [-1, 4]}]'
    )
    if not isinstance(option, (list, tuple)):
        raise ConfigError(example)
    return tuple(_spec(entry, example) for entry in cast("Sequence[object]", option))


def _spec(entry: object, example: str) -> TensorSpec:
    if isinstance(entry, TensorSpec):
        return entry
    if not isinstance(entry, dict):
        raise ConfigError(example)
    fields = cast("dict[str, Any]", entry)
    unknown = set(fields) - {"name", "datatype", "shape"}
    tensor, datatype, shape = fields.get("name"), fields.get("datatype", "FP32"), fields.get("shape")
    if unknown or not isinstance(tensor, str) or not isinstance(datatype, str):
        raise ConfigError(example)
    if datatype != "BF16":
        try:
            dtype_of(datatype)
        except TypeError as error:
            raise ConfigError(f"{example}: {error}") from None
    if shape is None:
        return TensorSpec(tensor, datatype)
    if not isinstance(shape, (list, tuple)):
        raise ConfigError(example)
    sizes = tuple(cast("Sequence[object]", shape))
    if not sizes or not all(type(size) is int and size >= -1 for size in sizes):
        raise ConfigError(
            f"{example}: a shape is a list of sizes that begins with the axis of rows, -1 for any size"
        )
    return TensorSpec(tensor, datatype, cast("tuple[int, ...]", sizes))
