"""Names for what goes into a framework's module and for what comes out of it."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, cast

from headrace.core.tensor import Array


def with_names(
    answer: Callable[[Mapping[str, Array]], Any], required: Sequence[str], optional: Sequence[str]
) -> Callable[..., Any]:
    """A predict whose signature tells these inputs; any, where none are named."""

    def predict(**tensors: Array) -> Any:
        return answer(tensors)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(n, keyword) for n in required]
    parameters += [inspect.Parameter(n, keyword, default=None) for n in optional]
    if not parameters:
        parameters = [inspect.Parameter("tensors", inspect.Parameter.VAR_KEYWORD)]
    predict.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    return predict


def by_name(result: Any, is_tensor: Callable[[Any], bool]) -> dict[str, Any]:
    """A result's tensors by name; what is None is left out.

    Mappings, dataclasses and named tuples have their own names; one tensor is ``output``, a tuple's are ``output_0`` and so on.
    Raises TypeError for anything else.
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
        raise TypeError(f"the module returned a {type(result).__name__}: return tensors")
    return {name: value for name, value in pairs if value is not None}
