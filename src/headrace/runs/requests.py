"""V2 inference requests as records: each record is a request of some rows, each prediction a response.

`RequestDecoder` parses records into requests. `RequestPredictor` answers a batch of requests with one
response for each, so that a flow treats a request like any other record. `headrace.runs.responses` writes
the responses. See docs/adr/0032-a-request-is-a-record.md.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import orjson
from typing_extensions import override

from headrace.core.block import Block, FailureKind
from headrace.core.errors import (
    BrokenModelError,
    DataError,
    LimitError,
    ModelInputError,
    PredictError,
    RefusedRowsError,
    SequenceError,
    UnsupportedError,
)
from headrace.core.predictor import Predictor, PredictorStatistics, complete_future
from headrace.core.tensor import Array, InferRequest, InferResponse, ModelMetadata, RowFailure, Tensor
from headrace.formats.contract import DecodedBlock, Decoder, FailureReasons
from headrace.protocols.oip_json import decode_request
from headrace.runs.responses import RESPONSE

REQUEST: Final = "request"
"""The name of the tensor with a request for each record: objects of `InferRequest`."""
_OF_THE_REQUEST: Final = (
    DataError,
    LimitError,
    ModelInputError,
    PredictError,
    RefusedRowsError,
    SequenceError,
    UnsupportedError,
)
"""Errors that another request need not have."""
_Outcome = InferResponse | RowFailure


def _objects(values: Iterable[InferRequest | InferResponse]) -> Array:
    """Return objects as an array. numpy's own conversion would try to read them as sequences."""
    return np.fromiter(values, object)


class RequestDecoder(Decoder):
    """A decoder of records that are V2 requests in JSON, for one model."""

    def __init__(self, metadata: ModelMetadata) -> None:
        self._as_rows = not metadata.whole_requests
        self._as_bytes = metadata.bytes_as == "bytes"

    @override
    def decode(self, block: Block) -> DecodedBlock:
        requests: list[InferRequest] = []
        reasons: FailureReasons = {}
        for row, record in enumerate(block.texts()):
            try:
                requests.append(self._request(record))
            except (DataError, UnsupportedError) as error:
                reasons[row] = _reason(record, error)
        return DecodedBlock.with_failures({REQUEST: _objects(requests)}, block, reasons)

    def _request(self, record: bytes) -> InferRequest:
        request = decode_request(record).request
        if self._as_rows:
            request = request.with_row_axes()
        if self._as_bytes:
            request = replace(request, inputs=tuple(map(_with_bytes, request.inputs)))
        return request


def _reason(record: bytes, error: Exception) -> tuple[FailureKind, str]:
    try:
        orjson.loads(record)
    except orjson.JSONDecodeError as defect:
        return FailureKind.FORMAT, f"not JSON: {defect}"
    return FailureKind.DECODE, str(error)


def _with_bytes(tensor: Tensor) -> Tensor:
    """Return a tensor with the text of JSON as UTF-8."""
    if tensor.datatype != "BYTES":
        return tensor
    texts = np.fromiter((text.encode() for text in tensor.data.ravel().tolist()), object)
    return replace(tensor, data=texts.reshape(tensor.data.shape))


@dataclass(frozen=True, slots=True)
class _Group:
    """Consecutive requests of a batch that are one request to the model, with the rows of each.

    A group that `is_whole` has one request, which is submitted unchanged.
    """

    requests: Sequence[InferRequest]
    rows: Sequence[int]
    is_whole: bool

    def submit(self, predictor: Predictor, id: str) -> "Future[InferResponse]":
        """Submit the requests. `id` names the group among those of a run."""
        first = self.requests[0]
        if self.is_whole:
            return predictor.submit(first, strict=True)
        inputs = first.inputs
        if len(self.requests) > 1:
            tensors = zip(*(request.inputs for request in self.requests), strict=True)
            inputs = tuple(
                Tensor(parts[0].name, np.concatenate([p.data for p in parts])) for parts in tensors
            )
        return predictor.submit(InferRequest(inputs, id, first.outputs))

    def outcomes(self, result: InferResponse | Exception) -> Iterator[_Outcome]:
        """Yield the response to each request, or a failure; its `row` is the request's index in the group."""
        if isinstance(result, Exception):
            why = str(getattr(result, "why", result))
            traceback = getattr(result, "traceback", None)
            yield from (RowFailure(n, why, traceback=traceback) for n in range(len(self.requests)))
        elif self.is_whole:
            # The client's id: a server may invent another one in each attempt.
            yield replace(result, id=self.requests[0].id)
        else:
            yield from self._split(result)

    def _split(self, joined: InferResponse) -> Iterator[_Outcome]:
        failed = {failure.row: failure for failure in joined.failures}
        row = output_row = 0
        for number, (request, rows) in enumerate(zip(self.requests, self.rows, strict=True)):
            refused = [failed[at] for at in range(row, row + rows) if at in failed] if failed else ()
            if refused:
                first = refused[0]
                why = first.why if rows == 1 else f"row {first.row - row + 1} of {rows}: {first.why}"
                yield replace(first, row=number, why=why)
            else:
                part = slice(output_row, output_row + rows)
                outputs = tuple([Tensor(t.name, t.data[part], t.parameters) for t in joined.outputs])
                yield replace(joined, outputs=outputs, id=request.id, failures=())
            row += rows
            output_row += rows - len(refused)


class RequestPredictor(Predictor):
    """A predictor of requests as records, around the predictor of a model.

    A request to it has one input, REQUEST, and its response one output, RESPONSE. Consecutive requests
    with the same inputs (names, datatypes and shapes of a row) and requested outputs share a request to the
    model, of up to `rows_max` rows (None: the model's limit). So the rows of a call depend on the batch
    alone. A model of whole requests and a model with a state get each request unchanged. A request with a
    refused row fails alone.

    The owner of the inner predictor starts and stops it.
    """

    def __init__(self, inner: Predictor, rows_max: int | None = None) -> None:
        self._inner = inner
        self._rows_max = rows_max

    @property
    @override
    def metadata(self) -> ModelMetadata:
        """The metadata of the model. Requests name their sequences themselves, so records have none."""
        return replace(self._inner.metadata, is_stateful=False)

    @property
    @override
    def in_flight_max(self) -> int:
        return self._inner.in_flight_max

    @override
    def start(self) -> None:
        self._inner.start()

    @override
    def stop(self, *, drain: bool = True) -> None:
        self._inner.stop(drain=drain)

    @override
    def statistics(self) -> PredictorStatistics:
        return self._inner.statistics()

    @override
    def submit(self, request: InferRequest, *, strict: bool = False) -> "Future[InferResponse]":
        """Submit a batch of requests. `row` of a failure is the index of its request in the batch."""
        del strict  # Each of the requests succeeds or fails as a whole.
        groups = list(self._groups(request[REQUEST].tolist()))
        joined = _JoinedResponses(groups)
        for number, group in enumerate(groups):
            joined.add(number, group.submit(self._inner, f"{request.id}.{number}"))
        return joined.future

    def _groups(self, requests: Sequence[InferRequest]) -> Iterator[_Group]:
        metadata = self._inner.metadata
        if metadata.whole_requests or metadata.is_stateful:
            yield from (_Group((request,), (1,), is_whole=True) for request in requests)
            return
        rows_max = self._rows_max or metadata.max_batch_rows
        start, total = 0, 0
        counts = [_rows_of(request) for request in requests]
        forms = [_form_of(request) for request in requests]
        for at, rows in enumerate(counts):
            if at > start and (forms[at] != forms[start] or total + rows > rows_max):
                yield _Group(requests[start:at], counts[start:at], is_whole=False)
                start, total = at, 0
            total += rows
        yield _Group(requests[start:], counts[start:], is_whole=False)


def _rows_of(request: InferRequest) -> int:
    """Return the rows of a request; 0 for inputs that disagree on them, which no model takes."""
    try:
        return request.rows
    except ModelInputError:
        return 0


def _form_of(request: InferRequest) -> tuple[object, ...]:
    """Return a value that is equal for requests that can share a call, in which no row looks different."""
    agree = len({tensor.data.shape[:1] for tensor in request.inputs}) == 1
    inputs = [(tensor.name, tensor.data.dtype, tensor.data.shape[1:]) for tensor in request.inputs]
    return (request.outputs, *inputs) if agree else (id(request),)


class _JoinedResponses:
    """The response to a batch, complete when the requests of all its groups are."""

    def __init__(self, groups: Sequence[_Group]) -> None:
        self.future: Future[InferResponse] = Future()
        self._groups = groups
        self._results: list[InferResponse | BaseException | None] = [None] * len(groups)
        self._left = len(groups)
        self._lock = threading.Lock()

    def add(self, number: int, future: "Future[InferResponse]") -> None:
        """Wait for the response to group `number`."""
        future.add_done_callback(partial(self._on_done, number))

    def _on_done(self, number: int, future: "Future[InferResponse]") -> None:
        try:
            result: InferResponse | BaseException = future.result()
        except BaseException as error:  # noqa: BLE001 - the result of the batch
            result = error
        with self._lock:
            self._results[number] = result
            self._left -= 1
            if self._left:
                return
        complete_future(self.future, self._joined())

    def _joined(self) -> InferResponse | BaseException:
        responses: list[InferResponse] = []
        failures: list[RowFailure] = []
        for group, result in zip(self._groups, self._results, strict=True):
            if isinstance(result, BaseException) and not _concerns_request(result):
                return result
            assert isinstance(result, InferResponse | Exception), "all groups are done"
            first = len(responses) + len(failures)
            for outcome in group.outcomes(result):
                if isinstance(outcome, InferResponse):
                    responses.append(outcome)
                else:
                    failures.append(replace(outcome, row=first + outcome.row))
        outputs = (Tensor(RESPONSE, _objects(responses)),) if responses else ()
        return InferResponse(outputs, failures=tuple(failures))


def _concerns_request(error: BaseException) -> bool:
    """Return True if an error makes its request a failed record, False if it ends the run."""
    return isinstance(error, _OF_THE_REQUEST) and not isinstance(error, BrokenModelError)
