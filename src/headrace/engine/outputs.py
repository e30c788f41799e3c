"""Results of a model's methods: checked arrays by name, responses made of them, opaque responses."""

import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import numpy as np

from headrace.core.errors import ModelContractError, ModelInputError
from headrace.core.model import HandleResponse
from headrace.core.tensor import (
    Array,
    InferRequest,
    InferResponse,
    ModelMetadata,
    RowFailure,
    Tensor,
    TensorSpec,
    datatype_of,
    empty_array,
    is_number,
)
from headrace.engine.streams import StreamCall

Outputs = dict[str, Array]

_UNNAMED = "output"


def concatenate(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Return all rows of several parts, in new arrays."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class OutputCheck:
    """A converter of what `predict`, or another `method`, returns into `Outputs`.

    Raises ModelContractError for anything else. A single array gets the name of the one declared
    output, or ``output``. A tuple must have as many items as declared outputs. Lists and other
    array-likes become arrays; text arrays hold objects.
    """

    def __init__(self, model: str, specs: Sequence[TensorSpec], method: str = "predict") -> None:
        self._model = model
        self._method = method
        self._names = [s.name for s in specs]

    def __call__(self, returned: Any, rows: int, request: str) -> Outputs:
        """Check the outputs of one call for `rows` rows of the request with the id `request`."""
        if type(returned) is np.ndarray and len(self._names) <= 1:
            array: Array = returned
            # Numeric, with one row per input row: no conversion is needed.
            shape = array.shape
            if shape and shape[0] == rows and is_number(array.dtype):
                return {self._names[0] if self._names else _UNNAMED: array}
        by_name = self._by_name(returned, request)
        outputs = {name: self._array(name, data, rows, request) for name, data in by_name.items()}
        missing = [n for n in self._names if n not in outputs]
        if missing or not outputs:
            missing_names = f"output {', '.join(map(repr, missing))}" if missing else "any output"
            raise self._error(
                f"it returned {', '.join(outputs) or 'an empty mapping'}, without {missing_names}", request
            )
        return outputs

    def joined(self, parts: Sequence[Outputs], request: str) -> Outputs:
        """Join the outputs of one request. Names, types and row shapes must agree."""
        if len(parts) <= 1:
            return dict(parts[0]) if parts else {}
        shapes = [{n: (d.shape[1:], d.dtype.kind) for n, d in p.items()} for p in parts]
        if any(s != shapes[0] for s in shapes):
            other = next(s for s in shapes if s != shapes[0])
            raise self._error(f"its outputs differ from call to call: {shapes[0]}, then {other}", request)
        return concatenate(parts)

    def _by_name(self, returned: Any, request: str) -> Mapping[str, Any]:
        if isinstance(returned, Mapping):
            return {str(name): data for name, data in cast("Mapping[Any, Any]", returned).items()}
        if isinstance(returned, tuple):
            values = cast("tuple[Any, ...]", returned)
            if len(values) != len(self._names):
                raise self._error(
                    f"it returned a tuple of {len(values)}: return a mapping by output name instead", request
                )
            return dict(zip(self._names, values, strict=True))
        if returned is None:
            raise self._error(
                f"it returned None: does every path of {self._method} end with a return?", request
            )
        return {self._names[0] if len(self._names) == 1 else _UNNAMED: returned}

    def _array(self, name: str, data: Any, rows: int, request: str) -> Array:
        try:
            array: Array = np.asarray(data)
            datatype = datatype_of(array.dtype)
        except (TypeError, ValueError) as error:
            raise self._error(f"output {name!r} cannot be converted to an array: {error}", request) from error
        if array.ndim == 0 or len(array) != rows:
            received = "one value" if array.ndim == 0 else f"{len(array)} rows"
            raise self._error(
                f"output {name!r} has {received} for {rows} rows: {self._method} must return one row "
                "for each input row (raise RowError to refuse a row)",
                request,
            )
        # Numpy's own text types pad to the longest; protocols and formats expect objects.
        return array.astype(object) if datatype == "BYTES" and array.dtype.kind != "O" else array

    def _error(self, why: str, request: str) -> ModelContractError:
        return ModelContractError(self._model, f"request {request}: {why}" if request else why)


def select_outputs(outputs: Outputs, request: InferRequest, model: str) -> Outputs:
    """Return the outputs that a request names. Raises ModelInputError for a missing output."""
    missing = [n for n in request.outputs if n not in outputs]
    if missing:
        why = f"it has no output {', '.join(map(repr, missing))} (it has {', '.join(map(repr, outputs))})"
        raise ModelInputError(model, why)
    return {n: outputs[n] for n in request.outputs}


_NO_PARAMETERS: Final[Mapping[str, Any]] = {}


class ResponseBuilder:
    """A builder of responses: joins outputs, selects those named by the request, adds the model.

    A request of zero rows gets outputs of zero rows, without a call of the model. Outputs without a
    declared shape have the row shape of the first response; before that, undeclared outputs are
    unknown and missing. Any thread.
    """

    def __init__(self, check: OutputCheck, metadata: ModelMetadata) -> None:
        self._check = check
        self._model = metadata.name
        self._version = metadata.version
        self._specs = specs = metadata.outputs
        self._first: Outputs = {}
        """Zero rows of the first outputs."""
        self.needs_outputs = not specs or any(spec.shape is None for spec in specs)
        """True until `record_outputs` was called, if the declaration does not say all shapes."""

    def __call__(
        self,
        parts: Sequence[Outputs],
        request: InferRequest,
        failures: tuple[RowFailure, ...] = (),
        parameters: Mapping[str, Any] = _NO_PARAMETERS,
    ) -> InferResponse:
        """Return one response.

        Raises ModelContractError if the calls differ in names or types, ModelInputError for missing
        outputs.
        """
        outputs = parts[0] if len(parts) == 1 else self._check.joined(parts, request.id)
        if not outputs:
            outputs = self._zero_rows(request)
        elif self.needs_outputs:
            self.record_outputs(outputs)
        if request.outputs and outputs:
            outputs = select_outputs(outputs, request, self._model)
        tensors = tuple([Tensor(name, data) for name, data in outputs.items()])
        return InferResponse(tensors, self._model, self._version, request.id, parameters, failures)

    def record_outputs(self, outputs: Outputs) -> None:
        """Record the row shapes of outputs, for later requests of zero rows."""
        # Copies, since a view would keep the outputs in memory.
        self._first = {name: data[:0].copy() for name, data in outputs.items()}
        self.needs_outputs = False

    def _zero_rows(self, request: InferRequest) -> Outputs:
        """Return the outputs for zero rows; none if the request has rows, or no inputs."""
        if not request.inputs or request.inputs[0].data.shape[:1] != (0,):
            return {}
        outputs = dict(self._first)
        for spec in self._specs:
            if spec.shape is not None or spec.name not in outputs:
                outputs[spec.name] = empty_array(spec)
        return outputs


_TEXT: Final = "text/plain; charset=utf-8"
_OWN_HEADERS: Final = frozenset(
    {"connection", "content-length", "content-type", "keep-alive", "transfer-encoding", "upgrade"}
)
"""Headers of the connection, or with a field of their own."""
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


@dataclass(frozen=True, eq=False)
class ChunkedResponse:
    """A response whose body the model makes chunk by chunk."""

    response: HandleResponse
    """The response, whose body is not read yet."""
    open_stream: Callable[[StreamCall], None]
    """Begins to send the chunks to a stream. Any thread, once; without it, the body is dropped."""


def check_response(metadata: ModelMetadata, returned: Any, request: InferRequest) -> InferResponse:
    """Return what `predict_request` returned, with the names of the model and the request.

    Raises ModelContractError for anything else than an InferResponse.
    """
    if not isinstance(returned, InferResponse):
        kind = type(returned).__name__
        raise ModelContractError(metadata.name, f"predict_request returned a {kind}, not an InferResponse")
    return replace(
        returned,
        model_name=metadata.name,
        model_version=metadata.version,
        id=returned.id or request.id,
    )


def check_responses(model: str, returned: Any, requests: int) -> list[HandleResponse]:
    """Return the result of `handle` as one response for each request.

    Bytes and text become bodies with status 200. Raises ModelContractError for anything else.
    """
    if isinstance(returned, (str, bytes)) or not isinstance(returned, Sequence):
        kind = type(returned).__name__
        raise ModelContractError(
            model, f"handle returned a {kind}: return a list with one response for each request"
        )
    responses = cast("Sequence[Any]", returned)
    if len(responses) != requests:
        raise ModelContractError(
            model,
            f"handle returned {len(responses)} responses for {requests} requests: return one for each "
            "(raise RowError to refuse a request)",
        )
    return [_response(model, response) for response in responses]


def _check_head(model: str, response: HandleResponse) -> None:
    if type(response.status) is not int or not 200 <= response.status <= 599:
        raise ModelContractError(
            model, f"handle returned the status {response.status!r}: use a number from 200 to 599"
        )
    if response.status in (204, 304) and response.body != b"":
        raise ModelContractError(
            model, f"handle returned a body with the status {response.status}: remove it"
        )
    headers: list[tuple[Any, Any]] = [*response.headers.items(), ("content-type", response.content_type)]
    for name, value in headers:
        if not isinstance(name, str) or not isinstance(value, str):
            raise ModelContractError(model, f"handle returned the header {name!r}: {value!r}: use text")
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ModelContractError(model, f"handle returned the invalid header {name!r}: {value!r}")
    if own := sorted(name for name in response.headers if name.lower() in _OWN_HEADERS):
        raise ModelContractError(
            model,
            f"handle returned the header {own[0]!r}: the server sets it (use content_type for the type)",
        )


def _response(model: str, response: Any) -> HandleResponse:
    if isinstance(response, bytes):
        return HandleResponse(response)
    if isinstance(response, str):
        return HandleResponse(response.encode(), content_type=_TEXT)
    if not isinstance(response, HandleResponse):
        kind = type(response).__name__
        raise ModelContractError(model, f"handle returned a {kind} as a response: return a HandleResponse")
    _check_head(model, response)
    body: Any = response.body
    if isinstance(body, (bytearray, memoryview)):
        return replace(response, body=bytes(cast("bytes", body)))
    if not isinstance(body, (bytes, Iterator, AsyncIterator)):
        kind = type(cast("object", body)).__name__
        raise ModelContractError(
            model, f"handle returned a body of type {kind}: use bytes or an iterator of bytes"
        )
    return response
