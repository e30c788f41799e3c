"""Elements of a PCollection to requests of the model, and responses back to elements.

Independent of Beam.

Input: the elements of one of Beam's batches. Output: an inference for each element, in its place.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, cast

import numpy as np

from headrace.core.errors import (
    HeadraceError,
    ModelContractError,
    ModelInputError,
    PredictError,
    RefusedRowsError,
)
from headrace.core.tensor import Array, InferRequest, InferResponse, Tensor, datatype_of

Element = Array | Mapping[str, Any] | InferRequest
"""One row as an array, one row as arrays by input name, or a request of one or more rows."""

ONLY_INPUT: Final = ""
"""Placeholder name of an array without a name. `LoadedModel` replaces it by the model's input."""

_Row = tuple[tuple[str, Array], ...]


@dataclass(frozen=True, slots=True)
class ElementFailure:
    """The value of `PredictionResult.inference` for an element without a prediction.

    `why` is the reason.

    `attempts` is the number of calls to the model, or the endpoint, with the element.
    """

    why: str
    attempts: int = 1

    ok: ClassVar[bool] = False


Inference = Mapping[str, Any] | InferResponse | ElementFailure
"""A row's outputs by name (numpy scalars of 1-D outputs, else arrays), a response, or a failure."""


@dataclass(frozen=True, slots=True)
class ElementRequest:
    """A request, and the elements of the batch that are its rows.

    `whole` marks a request that is an element itself.
    """

    request: InferRequest
    elements: tuple[int, ...]
    whole: bool = False


@dataclass(slots=True)
class ElementBatch:
    """A batch of elements as requests, and the failures of elements that cannot be requests."""

    size: int
    requests: list[ElementRequest] = field(default_factory=list[ElementRequest])
    failures: dict[int, ElementFailure] = field(default_factory=dict[int, ElementFailure])


def build_batch(elements: Sequence[Any], parameters: Mapping[str, Any]) -> ElementBatch:
    """Return the batch.

    Rows of equal names, types and shapes share a request. Elements that are requests stay requests.

    `parameters` are added to every request; a request's own parameters take precedence. Its
    deadline is dropped: it refers to another machine's clock.
    """
    batch = ElementBatch(len(elements))
    groups: dict[Any, list[tuple[int, _Row]]] = {}
    for index, element in enumerate(elements):
        if isinstance(element, InferRequest):
            request = replace(element, parameters={**parameters, **element.parameters}, deadline=None)
            batch.requests.append(ElementRequest(request, (index,), whole=True))
            continue
        try:
            row = _row(element)
            key = tuple((name, data.dtype.str, data.shape) for name, data in row)
        except (TypeError, ValueError) as error:
            batch.failures[index] = ElementFailure(str(error), 0)
        else:
            groups.setdefault(key, []).append((index, row))
    for rows in groups.values():
        names = [name for name, _ in rows[0][1]]
        stacked = [np.stack([row[at][1] for _, row in rows]) for at in range(len(names))]
        tensors = tuple(Tensor(name, data) for name, data in zip(names, stacked, strict=True))
        batch.requests.append(
            ElementRequest(InferRequest(tensors, parameters=parameters), tuple(i for i, _ in rows))
        )
    return batch


def _row(element: Any) -> _Row:
    """Return an element's inputs, sorted by name."""
    if isinstance(element, np.ndarray | np.generic):
        return ((ONLY_INPUT, _array(element, "the element")),)
    if not isinstance(element, Mapping):
        kind = type(cast("object", element)).__name__
        keyed = (
            ": use KeyedModelHandler for pairs of a key and an element" if isinstance(element, tuple) else ""
        )
        raise TypeError(
            f"an element must be a numpy array, a dict of arrays by input name or an InferRequest, "
            f"not a {kind}{keyed}"
        )
    named = cast("Mapping[Any, Any]", element)
    if not named:
        raise ValueError("the element is an empty dict: it needs an array for each input")
    row = [(str(name), _array(value, f"input {name!r}")) for name, value in named.items()]
    return tuple(sorted(row, key=lambda pair: pair[0]))


def _array(value: Any, what: str) -> Array:
    """Return a value as an array.

    Text becomes objects: numpy's own text types pad, and cut trailing zeros.
    """
    if isinstance(value, str | bytes):
        made = np.empty((), object)
        made[()] = value
        return made
    try:
        array: Array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{what} is not an array: {error}") from error
    if array.dtype.kind in "SU":
        return np.array(value, object)
    try:
        datatype_of(array.dtype)
    except TypeError as error:
        raise TypeError(f"{what}: {error}") from error
    return array


_ABOUT_ELEMENTS: Final = (ModelInputError, PredictError, RefusedRowsError)
"""Errors about the request itself. Other errors, of the model or the endpoint, fail the batch."""


def inferences(batch: ElementBatch, responses: Sequence[InferResponse | HeadraceError]) -> list[Inference]:
    """Return an inference for each element, in order.

    Raises:
        HeadraceError: An error that is not about single elements.
        ModelContractError: A response has neither a prediction nor a failure for a row.
    """
    results: dict[int, Inference] = dict(batch.failures)
    for request, response in zip(batch.requests, responses, strict=True):
        if isinstance(response, _ABOUT_ELEMENTS):
            results.update((index, ElementFailure(str(response))) for index in request.elements)
        elif isinstance(response, HeadraceError):
            raise response
        elif request.whole:
            results[request.elements[0]] = _request_inference(request.request, response)
        else:
            results.update(_row_inferences(request.elements, response))
    return [results[index] for index in range(batch.size)]


def _request_inference(request: InferRequest, response: InferResponse) -> Inference:
    """Return the response, or a failure if no row has a prediction."""
    if len(response.failures) < request.rows:
        return response
    reasons = "; ".join(f"row {f.row}: {f.why}" for f in response.failures[:8])
    return ElementFailure(reasons, max(f.attempts for f in response.failures))


def _row_inferences(elements: tuple[int, ...], response: InferResponse) -> dict[int, Inference]:
    """Return each row's own outputs, or its failure."""
    failed = {failure.row: failure for failure in response.failures}
    good = [index for row, index in enumerate(elements) if row not in failed]
    _check_rows(len(elements), len(good), response)
    results: dict[int, Inference] = {
        elements[row]: ElementFailure(failure.why, failure.attempts) for row, failure in failed.items()
    }
    for at, index in enumerate(good):
        results[index] = {tensor.name: tensor.data[at] for tensor in response.outputs}
    return results


def _check_rows(rows: int, good: int, response: InferResponse) -> None:
    """Check that no row is missing and none is doubled."""
    for tensor in response.outputs:
        if tensor.data.ndim == 0 or tensor.rows != good:
            raise ModelContractError(
                response.model_name or "?",
                f"output {tensor.name!r} has shape {list(tensor.data.shape)} "
                f"for {good} predicted rows of {rows}: the first axis must be rows",
            )
    if good and not response.outputs:
        raise ModelContractError(response.model_name or "?", f"it returned no output for {good} rows")


def element_bytes(element: Any) -> int:
    """Return the bytes of an element's arrays.

    Text counts its own bytes, where numpy counts pointers.
    """
    if isinstance(element, InferRequest):
        return sum(element_bytes(tensor.data) for tensor in element.inputs)
    if isinstance(element, Mapping):
        return sum(map(element_bytes, cast("Mapping[str, Any]", element).values()))
    if isinstance(element, str | bytes):
        return len(element)
    if isinstance(element, np.ndarray | np.generic) and (array := cast("Array", element)).dtype.kind != "O":
        return int(array.nbytes)
    if isinstance(element, Iterable):
        return sum(map(element_bytes, cast("Iterable[Any]", element)))
    return 8  # A number of Python, as the model receives it.
