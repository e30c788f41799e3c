"""Inputs and outputs of a framework's model: their specs, names, text, and batches of a fixed size."""

import inspect
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final, cast

import numpy as np
import orjson

from headrace.core.errors import ConfigError, ModelContractError
from headrace.core.model import RowError
from headrace.core.tensor import Array, TensorSpec, dtype_of, text_array

WHY_CHARS_MAX: Final = 400

_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*m")

_JSON = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def summarize_error(error: BaseException) -> str:
    """Return a library's error in one line: its type and the start of its text, without colours."""
    text = " ".join(_ESCAPES.sub("", str(error)).split())
    kind = type(error).__name__
    return f"{kind}: {text}"[:WHY_CHARS_MAX] if text else kind


def option_advice(name: str, value: object) -> str:
    """Return how to give a model an option: on the command line, in a ``model.toml`` and in Python."""
    text = orjson.dumps(value).decode()
    on_command_line = shlex.quote(f"{name}={text}")
    return (
        f"set its option {name}: on the command line -O {on_command_line}, in a model.toml "
        f"{name} = {text} below [options], in Python model_options={{{name!r}: {value!r}}}"
    )


def decode_text(name: str, data: Array) -> Array:
    """Return text as objects of str. Bytes are decoded as UTF-8.

    `name` is the input's name in messages.

    Raises:
        RowError: Rows are not UTF-8.
    """
    values: list[Any] = data.astype(object).ravel().tolist()
    if not any(isinstance(v, bytes) for v in values):
        return data
    width = max(1, len(values) // max(1, len(data)))
    texts = np.empty(len(values), object)
    errors: dict[int, str] = {}
    for index, value in enumerate(values):
        try:
            texts[index] = value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError as error:
            errors[index // width] = f"input {name!r} is not UTF-8: {error.reason} at byte {error.start}"
    if errors:
        raise RowError(errors)
    return texts.reshape(data.shape)


def encode_json_texts(values: Iterable[object]) -> Array:
    """Return a JSON text for each value, as a flat array of str.

    numpy's values and arrays become numbers.
    """
    return text_array([orjson.dumps(v, default=_plain, option=_JSON).decode() for v in values])


def _plain(value: Any) -> Any:
    """Return a JSON form of another type.

    A mapping becomes a dict, an array becomes lists, another value its text.
    """
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "items"):
        return dict(value.items())
    return str(value)


def predict_with_signature(
    call: Callable[[Mapping[str, Array]], Any], required: Sequence[str], optional: Sequence[str]
) -> Callable[..., Any]:
    """Return a predict function whose signature has these inputs, or any inputs if none are named."""

    def predict(**tensors: Array) -> Any:
        return call(tensors)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(n, keyword) for n in required]
    parameters += [inspect.Parameter(n, keyword, default=None) for n in optional]
    if not parameters:
        parameters = [inspect.Parameter("tensors", inspect.Parameter.VAR_KEYWORD)]
    predict.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    return predict


def outputs_by_name(result: Any, is_tensor: Callable[[Any], bool]) -> dict[str, Any]:
    """Return the tensors of a result by name. Values of None are left out.

    Mappings, dataclasses and named tuples have their own names. One tensor is ``output``; the
    tensors of a tuple are ``output_0`` and so on.

    Raises:
        TypeError: The result has another type.
    """
    if is_tensor(result):
        return {"output": result}
    if isinstance(result, Mapping):
        pairs = [(str(k), v) for k, v in cast("Mapping[Any, Any]", result).items()]
    elif is_dataclass(result):
        pairs = [(f.name, getattr(result, f.name)) for f in fields(result)]
    elif hasattr(result, "_asdict"):
        pairs = list(result._asdict().items())
    elif isinstance(result, (tuple, list)):
        several = cast("Sequence[Any]", result)
        pairs = [(f"output_{index}", value) for index, value in enumerate(several)]
    else:
        raise TypeError(f"the module returned a {type(result).__name__}: it must return tensors")
    return {name: value for name, value in pairs if value is not None}


def run_in_fixed_batches(
    run: Callable[[dict[str, Array]], dict[str, Array]], tensors: Mapping[str, Array], size: int, model: str
) -> dict[str, Array]:
    """Call `run` with `size` rows at a time and return the joined outputs.

    The last call is padded with copies of its last row; the padding is cut off again.

    Raises:
        ModelContractError: An output has another number of rows. `model` is the name in the
            message.
    """
    rows = len(next(iter(tensors.values())))
    parts: list[dict[str, Array]] = []
    for start in range(0, rows, size):
        piece = {n: d[start : start + size] for n, d in tensors.items()}
        short = size - len(next(iter(piece.values())))
        if short:
            piece = {n: np.concatenate([d, np.repeat(d[-1:], short, axis=0)]) for n, d in piece.items()}
        outputs = run(piece)
        for name, data in outputs.items():
            if not data.ndim or len(data) != size:
                shape = list(data.shape)
                why = f"output {name!r} has shape {shape} for {size} rows: its first axis must be rows"
                raise ModelContractError(model, why)
        parts.append({n: d[: size - short] for n, d in outputs.items()})
    return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


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
