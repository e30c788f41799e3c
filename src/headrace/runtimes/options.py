"""Options of models: plain values by name, as a settings file or another process can say them."""

import inspect
import keyword
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import orjson

from headrace.core.errors import ConfigError
from headrace.core.tensor import TensorSpec, dtype_of

Options = dict[str, Any]


def plain_options(options: Mapping[str, Any] | None, where: str) -> Options:
    """A copy made of nothing but JSON's values; ConfigError names the first that is no such value."""
    if not options:
        return {}
    for name, value in options.items():
        try:
            orjson.dumps({name: value})
        except TypeError as error:
            raise ConfigError(
                f"{where}: option {name!r} must be a plain value (text, a number, true or false, a list, a table): {error}"
            ) from None
    return orjson.loads(orjson.dumps(dict(options)))


def option_names(make: Callable[..., Any]) -> tuple[str, ...] | None:
    """What options a class or function takes: its keyword arguments; None when it takes any."""
    parameters = inspect.signature(make).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(p.name.removesuffix("_") for p in parameters if p.kind in kinds)


def arguments(options: Options, known: Sequence[str] | None, where: str) -> Options:
    """The options as keyword arguments; `class` becomes ``class_``. ConfigError lists the known for an unknown one."""
    if known is not None and (unknown := [name for name in options if name not in known]):
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise ConfigError(f"{where} has no option {', '.join(map(repr, unknown))}; {has}")
    return {f"{name}_" if keyword.iskeyword(name) else name: value for name, value in options.items()}


def tensor_specs(option: object, name: str, where: str) -> tuple[TensorSpec, ...]:
    """Specs from an option such as ``inputs = [{name = "x", datatype = "FP32", shape = [-1, 4]}]``.

    `shape` may be left out, or be without the axis of rows where it is empty. Raises ConfigError.
    """
    if option is None:
        return ()
    example = f'{where}: option {name!r} must be a list such as [{{name = "x", datatype = "FP32", shape = [-1, 4]}}]'
    if not isinstance(option, (list, tuple)):
        raise ConfigError(example)
    return tuple(_spec(entry, example) for entry in cast("Sequence[object]", option))


def _spec(entry: object, example: str) -> TensorSpec:
    if isinstance(entry, TensorSpec):
        return entry
    if not isinstance(entry, dict):
        raise ConfigError(example)
    told = cast("dict[str, Any]", entry)
    unknown = set(told) - {"name", "datatype", "shape"}
    tensor, datatype, shape = told.get("name"), told.get("datatype", "FP32"), told.get("shape")
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
        raise ConfigError(f"{example}: a shape is sizes from the axis of rows on, -1 for any")
    return TensorSpec(tensor, datatype, cast("tuple[int, ...]", sizes))
