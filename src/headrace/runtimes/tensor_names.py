"""Names for the inputs and outputs of a framework's module."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, cast

from headrace.core.tensor import Array


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
