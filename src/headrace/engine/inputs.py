"""What a model's `predict` takes: which names, whether a request fits them, and how arrays are handed over."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from headrace.core.errors import ModelInputError, ModelLoadError
from headrace.core.model import Model, steps
from headrace.core.tensor import Array, InferRequest, Tensor, TensorSpec, dtype_of

_GUESSED_DATATYPE = "FP32"
"""Of inputs that are known by the names of parameters alone."""


class ExactInput(NamedTuple):
    """An input of which everything but the rows is fixed: what has exactly that needs no other look."""

    name: str
    dtype: np.dtype[Any]
    axes: int
    row_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """The inputs of one model.

    `specs` is what the model's metadata tells: its declared `inputs`, else the parameters of `predict` that have no
    default (FP32, shape not known), else nothing. Types and shapes are checked only where the model declared them: what
    converts without loss is taken and converted (FP32 for FP64, UINT8 for FP32, ``[n, 1]`` for ``[n]``).
    """

    model: str
    specs: tuple[TensorSpec, ...]
    optional: frozenset[str]
    any_name: bool
    declared: bool
    positional: bool
    exact: tuple[ExactInput, ...] | None
    """Where all inputs are declared so; None: some are not."""

    @classmethod
    def of(cls, model: Model, name: str) -> "ModelInputs":
        """Read the signature of a loaded model. Raises ModelLoadError when its `predict`, or `step`, cannot take its inputs."""
        method = "step" if steps(model) else "predict"
        parameters = _parameters(model)
        kinds = {p.kind for p in parameters}
        named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        any_keyword = inspect.Parameter.VAR_KEYWORD in kinds
        any_position = inspect.Parameter.VAR_POSITIONAL in kinds
        required = [p.name for p in named if p.default is p.empty]
        by_keyword = {p.name for p in named if p.kind is not p.POSITIONAL_ONLY}
        specs = model.inputs or tuple(TensorSpec(n, _GUESSED_DATATYPE) for n in required)
        if not specs and not any_keyword and not any_position:
            raise ModelLoadError(
                name,
                f"{method} takes no inputs{' beside its states' if method == 'step' else ''}: give it a parameter for each, as in {method}({'self, states' if method == 'step' else 'self'}, x)",
            )
        names = [s.name for s in specs]
        keywords_do = any_keyword or set(names) <= by_keyword
        in_order = [p for p in named if p.kind is not p.KEYWORD_ONLY]
        if not keywords_do and not any_position and len(in_order) < len(names):
            raise ModelLoadError(
                name,
                f"{method}{inspect.signature(getattr(model, method))} cannot take its inputs {', '.join(names)}",
            )
        return cls(
            model=name,
            specs=specs,
            optional=frozenset(by_keyword - set(required) - set(names)),
            any_name=(any_keyword or any_position) and not model.inputs,
            declared=bool(model.inputs),
            positional=not keywords_do or (any_position and not any_keyword and not names),
            exact=exact_inputs(model.inputs) if model.inputs else None,
        )

    def check(self, request: InferRequest) -> int:
        """How many rows the request has. Raises ModelInputError when it does not fit."""
        rows = self.exact_rows(request)
        if rows is not None:
            return rows
        self.check_names(request)
        return self._rows(request)

    def exact_rows(self, request: InferRequest) -> int | None:
        """How many rows a request has that is exactly as the model declares; None for another, which may do all the same."""
        inputs, exact = request.inputs, self.exact
        if exact is None or len(inputs) != len(exact):
            return None
        rows = -1
        # In the declared order, as nearly all are; by a loop that makes nothing, since it is on the way of every request.
        for tensor, (name, dtype, axes, row_shape) in zip(inputs, exact):  # noqa: B905 - their lengths are equal
            data = tensor.data
            shape = data.shape
            if tensor.name != name or data.dtype is not dtype or len(shape) != axes or shape[1:] != row_shape:
                return None
            if rows not in (-1, shape[0]):
                return None
            rows = shape[0]
        return rows

    def check_names(self, request: InferRequest) -> None:
        """What `check` does, but that inputs need not agree on a number of rows: for streams."""
        given = {t.name: t for t in request.inputs}
        if len(given) < len(request.inputs):
            raise self._error(f"an input is given twice (given: {_listed(t.name for t in request.inputs)})")
        for spec in self.specs:
            tensor = given.pop(spec.name, None)
            if tensor is None:
                raise self._error(f"input {spec.name!r} is missing (given: {_names(request)})")
            if self.declared:
                self._check_spec(spec, tensor)
        if given and not self.any_name and (unknown := given.keys() - self.optional):
            takes = _listed(s.name for s in self.specs)
            raise self._error(f"it has no input {_listed(sorted(unknown))} (it takes {takes})")

    def call(self, predict: Callable[..., Any], tensors: Mapping[str, Array]) -> Any:
        """Call `predict` with arrays by input name, which have been checked."""
        if self.declared and not self._are_exact(tensors):
            tensors = {**tensors, **{s.name: _as_declared(s, tensors[s.name]) for s in self.specs}}
        if not self.positional:
            return predict(**tensors)
        names = [s.name for s in self.specs] or list(tensors)
        rest = {n: d for n, d in tensors.items() if n not in names}
        return predict(*(tensors[n] for n in names), **rest)

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
            f"input {spec.name!r} takes {wanted}, but was given {tensor.datatype} {list(shape)}"
        )

    def _rows(self, request: InferRequest) -> int:
        try:
            return request.rows
        except ModelInputError as error:
            raise self._error(error.why) from None

    def _error(self, why: str) -> ModelInputError:
        return ModelInputError(self.model, why)


def exact_inputs(specs: Sequence[TensorSpec]) -> tuple[ExactInput, ...] | None:
    """Declared inputs, where everything but the rows is fixed of all of them."""
    exact: list[ExactInput] = []
    for spec in specs:
        # Without a shape nothing is known of the axes; text and BF16 have no numpy type of their own.
        if not spec.shape or -1 in spec.shape[1:] or spec.datatype in ("BYTES", "BF16"):
            return None
        exact.append(ExactInput(spec.name, dtype_of(spec.datatype), len(spec.shape), spec.shape[1:]))
    return tuple(exact)


def _same_shape(wanted: tuple[int, ...] | None, shape: tuple[int, ...]) -> bool:
    """Whether nothing but the rows may vary, and nothing else does."""
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
        # numpy has no such type: bit patterns, or the same values widened.
        return given in ("UINT16", "FP32")
    if "BYTES" in (given, spec.datatype):
        return False
    return np.can_cast(tensor.data.dtype, dtype_of(spec.datatype), "safe")


def _as_declared(spec: TensorSpec, data: Array) -> Array:
    """An array that fits, in the type and number of axes that the model declared; itself where it has them."""
    if spec.shape is not None and data.ndim > len(spec.shape):
        data = data.reshape(len(data))
    if spec.datatype in ("BYTES", "BF16"):
        return data
    return data.astype(dtype_of(spec.datatype), copy=False)


def _parameters(model: Model) -> list[inspect.Parameter]:
    try:
        if not steps(model):
            return list(inspect.signature(model.predict).parameters.values())
        return _without_states(list(inspect.signature(model.step).parameters.values()))
    except (TypeError, ValueError):
        # Compiled code may not tell: then it is given what there is, by name.
        return [inspect.Parameter("tensors", inspect.Parameter.VAR_KEYWORD)]


def _without_states(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """The parameters of a `step` but the one that is given the states; none, where there is no such one."""
    first = parameters[0].kind if parameters else inspect.Parameter.KEYWORD_ONLY
    if first is inspect.Parameter.VAR_POSITIONAL:
        return parameters
    return [] if first in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD) else parameters[1:]


def _names(request: InferRequest) -> str:
    return _listed(t.name for t in request.inputs) or "none"


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names))
