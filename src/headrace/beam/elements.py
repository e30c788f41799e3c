"""Elements of a PCollection to requests of the model, and responses back to elements. Knows nothing of Beam.

Arrives: the elements of one of Beam's batches. Leaves: for every one of them, in its place, what it came to.
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
"""One row as an array, one row by the names of inputs, or a request of one or more rows."""

ONLY_INPUT: Final = ""
"""The name that a bare array has until it is with the model, which knows what its one input is called."""

_Row = tuple[tuple[str, Array], ...]


@dataclass(frozen=True, slots=True)
class ElementFailure:
    """Stands in `PredictionResult.inference` for an element that has no prediction; `why` says why, in words.

    `attempts` is how often the model, or the endpoint, was asked about it.
    """

    why: str
    attempts: int = 1

    ok: ClassVar[bool] = False


Inference = Mapping[str, Any] | InferResponse | ElementFailure
"""A row's outputs by name (numpy scalars for 1-D outputs, arrays otherwise), a request's response, or a failure."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and which elements of the batch its rows are. `whole`: it is an element by itself."""

    request: InferRequest
    elements: tuple[int, ...]
    whole: bool = False


@dataclass(slots=True)
class Batch:
    """A batch of elements as requests, and those that can be none."""

    size: int
    asked: list[Asked] = field(default_factory=list[Asked])
    failures: dict[int, ElementFailure] = field(default_factory=dict[int, ElementFailure])


def batch_of(elements: Sequence[Any], parameters: Mapping[str, Any]) -> Batch:
    """Rows of equal names, types and shapes share a request; requests stay what they are.

    `parameters` go with every request; what a request has itself comes first. Its deadline is dropped: it is in another
    machine's time.
    """
    batch = Batch(len(elements))
    alike: dict[Any, list[tuple[int, _Row]]] = {}
    for index, element in enumerate(elements):
        if isinstance(element, InferRequest):
            request = replace(element, parameters={**parameters, **element.parameters}, deadline=None)
            batch.asked.append(Asked(request, (index,), whole=True))
            continue
        try:
            row = _row(element)
            key = tuple((name, data.dtype.str, data.shape) for name, data in row)
        except (TypeError, ValueError) as error:
            batch.failures[index] = ElementFailure(str(error), 0)
        else:
            alike.setdefault(key, []).append((index, row))
    for rows in alike.values():
        names = [name for name, _ in rows[0][1]]
        stacked = [np.stack([row[at][1] for _, row in rows]) for at in range(len(names))]
        tensors = tuple(Tensor(name, data) for name, data in zip(names, stacked, strict=True))
        batch.asked.append(Asked(InferRequest(tensors, parameters=parameters), tuple(i for i, _ in rows)))
    return batch


def _row(element: Any) -> _Row:
    """An element's inputs, sorted by name."""
    if isinstance(element, np.ndarray | np.generic):
        return ((ONLY_INPUT, _array(element, "the element")),)
    if not isinstance(element, Mapping):
        kind = type(cast("object", element)).__name__
        keyed = (
            ": for pairs of a key and an element there is KeyedModelHandler"
            if isinstance(element, tuple)
            else ""
        )
        raise TypeError(
            f"an element is a numpy array, a dict of arrays by input name or an InferRequest, not a {kind}{keyed}"
        )
    named = cast("Mapping[Any, Any]", element)
    if not named:
        raise ValueError("the element is an empty dict: it needs an array for each input")
    row = [(str(name), _array(value, f"input {name!r}")) for name, value in named.items()]
    return tuple(sorted(row, key=lambda pair: pair[0]))


def _array(value: Any, what: str) -> Array:
    """What numpy makes of it; text as objects, since numpy's own would be cut at trailing zeros, and padded."""
    if isinstance(value, str | bytes):
        made = np.empty((), object)
        made[()] = value
        return made
    try:
        array: Array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{what} is no array: {error}") from error
    if array.dtype.kind in "SU":
        return np.array(value, object)
    try:
        datatype_of(array.dtype)
    except TypeError as error:
        raise TypeError(f"{what}: {error}") from error
    return array


_ABOUT_ELEMENTS: Final = (ModelInputError, PredictError, RefusedRowsError)
"""Errors of a request that are about what it asks. All others are the model's own, or the endpoint's, and end the batch."""


def inferences(batch: Batch, answers: Sequence[InferResponse | HeadraceError]) -> list[Inference]:
    """One for each element, in their order.

    Raises whatever is not about elements, and ModelContractError for a response that has not a prediction or a failure for each row.
    """
    found: dict[int, Inference] = dict(batch.failures)
    for asked, answer in zip(batch.asked, answers, strict=True):
        if isinstance(answer, _ABOUT_ELEMENTS):
            found.update((index, ElementFailure(str(answer))) for index in asked.elements)
        elif isinstance(answer, HeadraceError):
            raise answer
        elif asked.whole:
            found[asked.elements[0]] = _of_request(asked.request, answer)
        else:
            found.update(_of_rows(asked.elements, answer))
    return [found[index] for index in range(batch.size)]


def _of_request(request: InferRequest, response: InferResponse) -> Inference:
    """The response; a failure where no row of it is predicted."""
    if len(response.failures) < request.rows:
        return response
    whys = "; ".join(f"row {f.row}: {f.why}" for f in response.failures[:8])
    return ElementFailure(whys, max(f.attempts for f in response.failures))


def _of_rows(elements: tuple[int, ...], response: InferResponse) -> dict[int, Inference]:
    """Each row's own outputs, or its failure."""
    failed = {failure.row: failure for failure in response.failures}
    good = [index for row, index in enumerate(elements) if row not in failed]
    _check_rows(len(elements), len(good), response)
    found: dict[int, Inference] = {
        elements[row]: ElementFailure(failure.why, failure.attempts) for row, failure in failed.items()
    }
    for at, index in enumerate(good):
        found[index] = {tensor.name: tensor.data[at] for tensor in response.outputs}
    return found


def _check_rows(rows: int, good: int, response: InferResponse) -> None:
    """Nothing is dropped, and nothing is doubled."""
    for tensor in response.outputs:
        if tensor.data.ndim == 0 or tensor.rows != good:
            raise ModelContractError(
                response.model_name or "?",
                f"output {tensor.name!r} has shape {list(tensor.data.shape)} for {good} predicted rows of {rows}: "
                "the first axis must be rows",
            )
    if good and not response.outputs:
        raise ModelContractError(response.model_name or "?", f"it returned no output for {good} rows")


def element_bytes(element: Any) -> int:
    """The bytes of an element's arrays; of text its own, where numpy would count pointers."""
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
    return 8  # a number of Python's, as the model gets it
