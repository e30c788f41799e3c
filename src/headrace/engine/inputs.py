"""Inputs of a model's `predict` or `step`: names, checks, and the call with arrays."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from headrace.core.errors import ModelInputError, ModelLoadError
from headrace.core.model import BytesAs, Model, overrides
from headrace.core.tensor import Array, InferRequest, ModelMetadata, Tensor, TensorSpec, dtype_of, text_array

_GUESSED_DATATYPE = "FP32"
"""Datatype of inputs that are known by parameter names only."""


class ExactInput(NamedTuple):
    """An input with a fixed type and row shape: an array that matches exactly needs no other check."""

    name: str
    dtype: np.dtype[Any]
    axes: int
    row_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """The inputs of one model.

    `specs` are the inputs in the model's metadata: its declared `inputs`, else the parameters of
    `predict` without a default (FP32, shape unknown), else nothing. Types and shapes are checked
    only if the model declares them. Arrays that convert without loss are accepted and converted:
    FP32 for FP64, UINT8 for FP32, ``[n, 1]`` for ``[n]``.
    """

    model: str
    specs: tuple[TensorSpec, ...]
    optional: tuple[str, ...]
    any_name: bool
    declared: bool
    positional: bool
    exact: tuple[ExactInput, ...] | None
    """The inputs, if all of them have a fixed type and row shape; else None."""
    whole_requests: bool = False
    """Whether requests may have tensors without axes, which are no rows."""
    reserved: tuple[str, ...] = ()
    """Names of parameters that the call fills before the tensors, such as `self`. No tensor that is
    passed by name can have them.
    """

    def zeros(self, rows: int) -> dict[str, Array] | None:
        """Return inputs of zeros, or None if the row shapes are not fixed."""
        arrays: dict[str, Array] = {}
        for spec in self.specs:
            if spec.shape is None or spec.datatype == "BYTES" or -1 in spec.shape[1:]:
                return None
            datatype = "FP32" if spec.datatype == "BF16" else spec.datatype
            arrays[spec.name] = np.zeros((rows, *spec.shape[1:]), dtype_of(datatype))
        return arrays or None

    @classmethod
    def of(cls, model: Model, name: str) -> "ModelInputs":
        """Read the signature of a loaded model.

        Raises ModelLoadError if its `predict`, or `step`, cannot take its inputs.
        """
        method = "step" if overrides(model, "step") else "predict"
        parameters = _parameters(model)
        kinds = {p.kind for p in parameters}
        named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        any_keyword = inspect.Parameter.VAR_KEYWORD in kinds
        any_position = inspect.Parameter.VAR_POSITIONAL in kinds
        required = [p.name for p in named if p.default is p.empty]
        by_keyword = {p.name for p in named if p.kind is not p.POSITIONAL_ONLY}
        specs = model.inputs or tuple(TensorSpec(n, _GUESSED_DATATYPE) for n in required)
        if not specs and not any_keyword and not any_position:
            besides = " besides its states" if method == "step" else ""
            example = "step(self, states, x)" if method == "step" else "predict(self, x)"
            raise ModelLoadError(
                name,
                f"{method} takes no inputs{besides}: declare a parameter for each input, as in {example}",
            )
        names = [s.name for s in specs]
        reserved = _reserved_names(model) if any_keyword else ()
        keywords_do = set(names) <= by_keyword or (any_keyword and not set(names) & set(reserved))
        in_order = [p for p in named if p.kind is not p.KEYWORD_ONLY]
        if not keywords_do and not any_position and len(in_order) < len(names):
            raise ModelLoadError(
                name,
                f"{method}{inspect.signature(getattr(model, method))} cannot be called with its inputs "
                f"{', '.join(names)}",
            )
        return cls(
            model=name,
            specs=specs,
            optional=tuple(sorted(by_keyword - set(required) - set(names))),
            any_name=(any_keyword or any_position) and not model.inputs,
            declared=bool(model.inputs),
            positional=not keywords_do or (any_position and not any_keyword and not names),
            exact=exact_inputs(model.inputs) if model.inputs else None,
            whole_requests=model.predict_request is not None,
            reserved=reserved,
        )

    def check(self, request: InferRequest) -> int:
        """Return the number of rows of a request.

        Raises ModelInputError if the request does not fit.
        """
        rows = None if self.exact is None else self.exact_rows(request)
        if rows is not None:
            return rows
        self.check_names(request)
        if self.reserved and not self.positional:
            self._check_reserved(request)
        try:
            return request.rows
        except ModelInputError as error:
            return self._rows_with_axes(request, error)

    def exact_rows(self, request: InferRequest) -> int | None:
        """Return the rows of a request that matches the declared inputs exactly, else None.

        A request that does not match exactly may fit all the same.
        """
        inputs, exact = request.inputs, self.exact
        if exact is None or len(inputs) != len(exact):
            return None
        rows = -1
        # In the declared order, which nearly all requests have. A loop without allocations, since
        # every request passes it.
        for tensor, (name, dtype, axes, row_shape) in zip(inputs, exact):  # noqa: B905 - of equal length
            data = tensor.data
            shape = data.shape
            if tensor.name != name or data.dtype is not dtype or len(shape) != axes or shape[1:] != row_shape:
                return None
            if rows not in (-1, shape[0]):
                return None
            rows = shape[0]
        return rows

    def check_names(self, request: InferRequest) -> None:
        """Check as `check` does, except that inputs may differ in their rows: for streams."""
        given = {t.name: t for t in request.inputs}
        if len(given) < len(request.inputs):
            raise self._error(
                f"an input occurs twice in the request (inputs: {_listed(t.name for t in request.inputs)})"
            )
        for spec in self.specs:
            tensor = given.pop(spec.name, None)
            if tensor is None:
                raise self._error(f"input {spec.name!r} is missing (inputs: {_names(request)})")
            if self.declared:
                self._check_spec(spec, tensor)
        if given and not self.any_name and (unknown := given.keys() - set(self.optional)):
            takes = _listed(s.name for s in self.specs)
            raise self._error(f"it has no input {_listed(sorted(unknown))} (it takes {takes})")

    def call(self, predict: Callable[..., Any], tensors: Mapping[str, Array]) -> Any:
        """Call `predict` with checked arrays by input name."""
        if self.declared and not self._are_exact(tensors):
            tensors = {**tensors, **{s.name: _as_declared(s, tensors[s.name]) for s in self.specs}}
        if not self.positional:
            return predict(**tensors)
        names = [s.name for s in self.specs] or list(tensors)
        rest = {n: d for n, d in tensors.items() if n not in names}
        return predict(*(tensors[n] for n in names), **rest)

    def _check_reserved(self, request: InferRequest) -> None:
        for tensor in request.inputs:
            if tensor.name in self.reserved:
                raise self._error(
                    f"no input can be named {tensor.name!r}: its method has a parameter of this name"
                )

    def _are_exact(self, tensors: Mapping[str, Array]) -> bool:
        if self.exact is None:
            return False
        for name, dtype, axes, _ in self.exact:
            data = tensors[name]
            if data.dtype is not dtype or data.ndim != axes:
                return False
        return True

    def _check_spec(self, spec: TensorSpec, tensor: Tensor) -> None:
        data = tensor.data
        shape = data.shape
        if (_same_shape(spec.shape, shape) or _shape_fits(spec, shape)) and _type_fits(spec, tensor):
            return
        wanted = spec.datatype if spec.shape is None else f"{spec.datatype} {list(spec.shape)}"
        raise self._error(
            f"input {spec.name!r} takes {wanted}, but the request has {tensor.datatype} {list(shape)}"
        )

    def _rows_with_axes(self, request: InferRequest, error: ModelInputError) -> int:
        """Return the rows, where tensors without axes are no rows. Raises if there may be none of them."""
        with_axes = tuple(t for t in request.inputs if t.data.ndim)
        if not self.whole_requests or len(with_axes) == len(request.inputs):
            raise self._error(error.why) from None
        try:
            return InferRequest(with_axes).rows if with_axes else 1
        except ModelInputError as differing:
            raise self._error(differing.why) from None

    def _error(self, why: str) -> ModelInputError:
        return ModelInputError(self.model, why)


def convert_inputs(request: InferRequest, metadata: ModelMetadata, *, as_rows: bool) -> InferRequest:
    """Return the request with BYTES elements as the model takes them.

    Text arrives as str from JSON and as bytes elsewhere. With `as_rows`, tensors without axes become
    one row. Raises ModelInputError for invalid UTF-8.
    """
    for tensor in request.inputs:
        data = tensor.data
        if data.dtype.char == "O" or not data.ndim:
            break
    else:
        # Nearly every request ends here. On the hot path, a loop and `char` (not `kind`) are fast.
        return request
    if as_rows:
        request = request.with_row_axes()
    bytes_as = metadata.bytes_as
    if bytes_as == "sent":
        return request
    inputs = tuple(
        _converted(t, bytes_as, metadata.name) if t.data.dtype.kind == "O" else t for t in request.inputs
    )
    return replace(request, inputs=inputs)


def _converted(tensor: Tensor, bytes_as: BytesAs, model: str) -> Tensor:
    values: list[Any] = tensor.data.ravel().tolist()
    element_type = str if bytes_as == "str" else bytes
    if set(map(type, values)) <= {element_type}:
        return tensor
    converted = [_element(tensor.name, i, v, element_type, model) for i, v in enumerate(values)]
    data: Array = text_array(converted).reshape(tensor.data.shape)
    return replace(tensor, data=data)


def _element(name: str, index: int, value: Any, element_type: type, model: str) -> Any:
    if isinstance(value, bytes) and element_type is str:
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            why = f"input {name!r} takes text, but element {index} is not UTF-8 (byte {error.start})"
            raise ModelInputError(model, why) from None
    return value.encode() if isinstance(value, str) and element_type is bytes else value


def exact_inputs(specs: Sequence[TensorSpec]) -> tuple[ExactInput, ...] | None:
    """Return the inputs if the type and row shape of all of them are fixed, else None."""
    exact: list[ExactInput] = []
    for spec in specs:
        # Without a shape, the axes are unknown; text and BF16 have no numpy type of their own.
        if not spec.shape or -1 in spec.shape[1:] or spec.datatype in ("BYTES", "BF16"):
            return None
        exact.append(ExactInput(spec.name, dtype_of(spec.datatype), len(spec.shape), spec.shape[1:]))
    return tuple(exact)


def _same_shape(wanted: tuple[int, ...] | None, shape: tuple[int, ...]) -> bool:
    """Return True if all but the row count is fixed and equal."""
    return wanted is not None and len(wanted) == len(shape) and wanted[1:] == shape[1:]


def _shape_fits(spec: TensorSpec, shape: tuple[int, ...]) -> bool:
    if spec.shape is None:
        return True
    if len(shape) == 2 and shape[1] == 1 and len(spec.shape) == 1:
        return True
    return len(shape) == len(spec.shape) and all(
        want in (-1, have) for have, want in zip(shape[1:], spec.shape[1:], strict=True)
    )


def _type_fits(spec: TensorSpec, tensor: Tensor) -> bool:
    given = tensor.datatype
    if given == spec.datatype:
        return True
    if spec.datatype == "BF16":
        # Numpy has no BF16: bit patterns, or the values widened to FP32.
        return given in ("UINT16", "FP32")
    if "BYTES" in (given, spec.datatype):
        return False
    return np.can_cast(tensor.data.dtype, dtype_of(spec.datatype), "safe")


def _as_declared(spec: TensorSpec, data: Array) -> Array:
    """Return the array in the declared type and number of axes, without a copy if it has them."""
    if spec.shape is not None and data.ndim > len(spec.shape):
        data = data.reshape(len(data))
    if spec.datatype in ("BYTES", "BF16"):
        return data
    return data.astype(dtype_of(spec.datatype), copy=False)


def _parameters(model: Model) -> list[inspect.Parameter]:
    try:
        if not overrides(model, "step"):
            return list(inspect.signature(model.predict).parameters.values())
        return _without_states(list(inspect.signature(model.step).parameters.values()))
    except (TypeError, ValueError):
        # Compiled code may have no signature. Then all inputs are passed by name.
        return [inspect.Parameter("tensors", inspect.Parameter.VAR_KEYWORD)]


def _reserved_names(model: Model) -> tuple[str, ...]:
    """Return the parameters that the call fills before the tensors, unless they are positional-only."""
    method = model.step if overrides(model, "step") else model.predict
    filled = 1 if overrides(model, "step") else 0
    # The signature of a bound method lacks its first parameter.
    function = getattr(method, "__func__", None)
    try:
        parameters = inspect.signature(function or method).parameters.values()
    except (TypeError, ValueError):
        return ()
    first = list(parameters)[: filled + (function is not None)]
    return tuple(p.name for p in first if p.kind is p.POSITIONAL_OR_KEYWORD)


def _without_states(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """Return the parameters of `step` without the states; none if no parameter takes the states."""
    first = parameters[0].kind if parameters else inspect.Parameter.KEYWORD_ONLY
    if first is inspect.Parameter.VAR_POSITIONAL:
        return parameters
    return [] if first in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD) else parameters[1:]


def _names(request: InferRequest) -> str:
    return _listed(t.name for t in request.inputs) or "none"


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names))
