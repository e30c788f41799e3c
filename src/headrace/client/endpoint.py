"""The predictor of the model at a URL, and its protocols over REST. Each runs in one event loop.

The Open Inference Protocol takes a batch a request, with binary tensors where the endpoint accepts
them. TorchServe's ``POST /predictions/NAME`` takes one row a request and forms batches itself. Refused
rows become failures of the response.
"""

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import orjson

from headrace.batching.bisect import Bisection
from headrace.client.address import TOKEN_VARIABLE, EndpointAddress, resolve_address
from headrace.client.connection_pool import HttpRequest
from headrace.client.predictor import EndpointPredictor, EndpointProtocol
from headrace.client.retry import HttpResponse, ResponseKind, classify_response
from headrace.client.retrying_client import RetryingClient, RowsRefusedError
from headrace.client.rows import RefusalGuard, join_outputs, require_outputs, require_rows, select_rows
from headrace.core.clock import Clock
from headrace.core.errors import (
    ConfigError,
    DataError,
    EndpointError,
    EndpointRefusedError,
    EndpointUnavailableError,
    ModelContractError,
    RefusedRowsError,
    UnsupportedError,
)
from headrace.core.sequence import SequenceControl
from headrace.core.tensor import (
    InferRequest,
    InferResponse,
    ModelMetadata,
    RowFailure,
    Tensor,
    TensorSpec,
)
from headrace.protocols.oip_documents import decode_metadata
from headrace.protocols.oip_json import HEADER_LENGTH, decode_response, encode_request, parse_header_length
from headrace.protocols.torchserve import (
    ResponseLayout,
    decode_body,
    decode_error_body,
    encode_row,
    outputs_from_responses,
)

_log = logging.getLogger("headrace.client")

ROWS_MAX = 64
"""The row limit of one request. Each row is an HTTP request; 64 fill several batches."""

_ENCODING_REFUSED_STATUSES = frozenset({406, 415, 501})
"""Statuses that refuse the encoding of a request, while the encoding is unknown."""


def endpoint_predictor(
    url: str,
    *,
    protocol: str = "auto",
    model: str | None = None,
    in_flight_max: int = 16,
    timeout_s: float = 60.0,
    retry_s: float = 120.0,
    environ: Mapping[str, str] | None = None,
    clock: Clock | None = None,
) -> EndpointPredictor:
    """Return a predictor that calls the model at `url`. It is not started.

    Transient failures (429, 502, 503, 504, a lost connection, a timeout) are retried, with growing
    delays or as Retry-After says. Refused rows (400, 413, 422, 500) become failures of those rows,
    found by bisection. Every other refusal fails the request. While the endpoint does not respond
    at all, one request at a time probes it. The token in the environment variable
    HEADRACE_ENDPOINT_TOKEN is sent as a bearer token.

    Args:
        url: ``.../v2/models/NAME[/versions/V][/infer]``, ``.../predictions/NAME[/V]``, or the root
            of a server with `model`.
        protocol: ``oip``, ``torchserve``, or ``auto`` for a choice by the path of the URL.
        model: The name of the model, if the URL has none.
        in_flight_max: The limit of unfinished requests, and of concurrent HTTP requests.
        timeout_s: Seconds for one HTTP request, from sending it to the last byte of the response.
        retry_s: Seconds for which a request is retried after its first failure. The last attempt
            may take `timeout_s` more.
        environ: The environment; None: that of the process.
        clock: The clock of retries, deadlines and busy time.

    Raises:
        ConfigError: The URL or a setting is invalid.
    """
    if in_flight_max < 1 or timeout_s <= 0 or retry_s < 0:
        raise ConfigError(
            "an endpoint needs at least 1 request in flight, a timeout above 0 s and a retry time of 0 s or "
            f"more, not {in_flight_max}, {timeout_s:g} s and {retry_s:g} s"
        )
    address = resolve_address(url, protocol=protocol, model=model)
    protocol_type = TorchServeProtocol if address.protocol == "torchserve" else OipRestProtocol
    return EndpointPredictor(
        lambda: protocol_type(address, RefusalGuard(address.model_url)),
        url=address.model_url,
        model=address.model,
        in_flight_max=in_flight_max,
        timeout_s=timeout_s,
        retry_s=retry_s,
        headers=_credentials(os.environ if environ is None else environ),
        clock=clock,
    )


def _credentials(environ: Mapping[str, str]) -> dict[str, str]:
    token = environ.get(TOKEN_VARIABLE, "").strip()
    if not token:
        return {}
    if not (token.isascii() and token.isprintable()):
        raise ConfigError(
            f"{TOKEN_VARIABLE} contains characters that an HTTP header cannot carry: correct the token"
        )
    return {"Authorization": f"Bearer {token}"}


class OipRestProtocol(EndpointProtocol):
    """The Open Inference Protocol for one model of an endpoint, from one start to the next.

    The first request has binary tensors. If the endpoint refuses it but accepts JSON, all others
    are JSON.
    """

    def __init__(self, address: EndpointAddress, guard: RefusalGuard) -> None:
        self._address = address
        self._guard = guard
        self._binary: bool | None = None
        """The encoding of requests: binary or JSON; None until the first response."""
        self._probe_lock = asyncio.Lock()
        self._metadata = ModelMetadata(address.model, address.version, whole_requests=True)
        self._datatypes: dict[str, str] = {}

    async def fetch_metadata(self, client: RetryingClient) -> ModelMetadata:
        """Return the metadata of the model. Fields that the endpoint does not report are empty.

        BF16 tensors are reported as FP32, since clients send and receive FP32. Raises
        EndpointError.
        """
        url = self._address.model_url
        try:
            response = await client.request(HttpRequest("GET", url))
        except EndpointRefusedError as error:
            if error.status not in (405, 501):
                raise
            # The endpoint has the model but no metadata, often none of a version.
            return self._metadata
        try:
            metadata = decode_metadata(response.body)
        except DataError as error:
            raise EndpointError(
                url, f"its response is not the metadata of a model: {error}", status=response.status
            ) from error
        self._datatypes = {s.name: s.datatype for s in metadata.inputs}
        rows_max = await self._rows_max(client, metadata)
        self._metadata = replace(
            metadata,
            name=metadata.name or self._address.model,
            version=self._address.version or metadata.version,
            inputs=tuple(map(_widen_bf16, metadata.inputs)),
            outputs=tuple(map(_widen_bf16, metadata.outputs)),
            max_batch_rows=rows_max,
            whole_requests=True,
        )
        return self._metadata

    async def _rows_max(self, client: RetryingClient, metadata: ModelMetadata) -> int:
        """Return the row limit of one request.

        It is a fixed first axis, else the limit in Triton's configuration, else headrace's default.
        """
        fixed = [s.shape[0] for s in metadata.inputs if s.shape and s.shape[0] > 0]
        if fixed:
            return min(fixed)
        default = self._metadata.max_batch_rows
        try:
            response = await client.request(
                HttpRequest("GET", f"{self._address.model_url}/config"), retry_s=0.0
            )
            found: Any = orjson.loads(response.body)
        except (EndpointRefusedError, EndpointUnavailableError, orjson.JSONDecodeError):
            # Only Triton has this URL.
            return default
        rows = cast("dict[str, Any]", found).get("max_batch_size") if isinstance(found, dict) else None
        return min(rows, default) if isinstance(rows, int) and rows > 0 else default

    async def infer(self, client: RetryingClient, request: InferRequest, rows: int) -> InferResponse:
        """Send all rows, in requests of up to `max_batch_rows` rows. Refused batches are bisected.

        Raises EndpointError for failures that concern no single row, ModelContractError if output
        rows are missing.
        """
        parts: list[Sequence[Tensor]] = []
        failures: list[RowFailure] = []
        rows_max = self._metadata.max_batch_rows
        for start in range(0, rows, rows_max):
            stop = min(start + rows_max, rows)
            part = request if stop - start == rows else select_rows(request, slice(start, stop))
            failures.extend(
                RowFailure(f.row + start, f.why, f.attempts)
                for f in await self._infer_batch(client, part, stop - start, parts)
            )
        return InferResponse(
            join_outputs(self._metadata.name, request.id, parts),
            self._metadata.name,
            self._metadata.version,
            id=request.id,
            failures=tuple(failures),
        )

    async def infer_whole(self, client: RetryingClient, request: InferRequest) -> InferResponse:
        """Send a request once, and return the response of the endpoint with its parameters.

        Raises UnsupportedError for a step of a sequence, RefusedRowsError if the endpoint refuses the
        request, and EndpointError for failures that concern every request.
        """
        if SequenceControl.from_parameters(request.parameters).id:
            raise UnsupportedError(
                "the request is a step of a sequence, which an endpoint would take twice if its response "
                "is lost: use the model itself (--model)"
            )
        try:
            response = await self._infer_once(client, request)
        except (RowsRefusedError, DataError) as error:
            why = error.why if isinstance(error, EndpointError) else str(error)
            self._guard.record_refusal(why, getattr(error, "status", None))
            raise RefusedRowsError(self._metadata.name, why) from error
        self._guard.record_success(1)
        return response

    async def _infer_batch(
        self, client: RetryingClient, request: InferRequest, rows: int, parts: list[Sequence[Tensor]]
    ) -> tuple[RowFailure, ...]:
        """Send one batch; bisect it if refused.

        Append the outputs of good rows to `parts`, in order.
        """
        search = Bisection([rows])
        while (pieces := search.next()) is not None:
            indices = pieces[0].rows
            part = request if len(indices) == rows else select_rows(request, indices)
            try:
                outputs = (await self._infer_once(client, part)).outputs
            except (RowsRefusedError, DataError) as error:
                why = error.why if isinstance(error, EndpointError) else str(error)
                if len(indices) == 1:
                    self._guard.record_refusal(why, getattr(error, "status", None))
                search.mark_failed(why)
                continue
            require_rows(request, outputs, len(indices), self._metadata.name)
            self._guard.record_success(len(indices))
            parts.append(outputs)
            search.mark_succeeded()
        return search.failures()

    async def _infer_once(self, client: RetryingClient, request: InferRequest) -> InferResponse:
        """Send one request in the encoding that the endpoint accepts.

        Raises DataError if the encoding cannot represent the values.
        """
        if self._binary is None:
            # One request at a time, until the encoding is known.
            async with self._probe_lock:
                if self._binary is None:
                    return await self._probe_encoding(client, request)
        return await self._post(client, request, binary=self._binary)

    async def _probe_encoding(self, client: RetryingClient, request: InferRequest) -> InferResponse:
        try:
            response = await self._post(client, request, binary=True)
        except RowsRefusedError as refusal:
            # Both encodings fail for bad rows; then the encoding stays unknown.
            try:
                response = await self._post(client, request, binary=False)
            except DataError:
                raise refusal from None
            self._binary = False
            _log.info("%s accepts no binary tensors (%s): using JSON", self._address.model_url, refusal.why)
            return response
        self._binary = True
        return response

    async def _post(self, client: RetryingClient, request: InferRequest, *, binary: bool) -> InferResponse:
        wire = encode_request(request, binary=binary, datatypes=self._datatypes)
        http_request = HttpRequest("POST", self._address.predict_url, wire.body, wire.headers)
        response = await client.request(
            http_request,
            _classify_probe_response if self._binary is None and binary else classify_response,
        )
        try:
            json_bytes = parse_header_length(response.headers.get(HEADER_LENGTH.lower()))
            return decode_response(response.body, json_bytes, bf16="float32")
        except DataError as error:
            raise EndpointError(
                http_request.url,
                f"its response violates the Open Inference Protocol: {error}",
                status=response.status,
            ) from error


def _classify_probe_response(response: HttpResponse) -> ResponseKind:
    return (
        ResponseKind.ROWS_REFUSED
        if response.status in _ENCODING_REFUSED_STATUSES
        else classify_response(response)
    )


def _widen_bf16(spec: TensorSpec) -> TensorSpec:
    return replace(spec, datatype="FP32") if spec.datatype == "BF16" else spec


class TorchServeProtocol(EndpointProtocol):
    """TorchServe's protocol for one model of an endpoint, from one start to the next.

    The first request decides the layout of all responses (see `ResponseLayout`).
    """

    def __init__(self, address: EndpointAddress, guard: RefusalGuard) -> None:
        self._address = address
        self._guard = guard
        self._layout: ResponseLayout | None = None

    async def fetch_metadata(self, client: RetryingClient) -> ModelMetadata:
        """Return name and version only, without a request. TorchServe reports no inputs.

        The first response shows whether the endpoint is up.
        """
        del client
        address = self._address
        return ModelMetadata(address.model, address.version, "torchserve", max_batch_rows=ROWS_MAX)

    async def infer(self, client: RetryingClient, request: InferRequest, rows: int) -> InferResponse:
        """Send each row in a request of its own, and return the joined predictions.

        Raises EndpointError for failures that concern no single row, ModelContractError for an
        invalid output.
        """
        predictions: list[Any] = [None] * rows
        failures: dict[int, RowFailure] = {}
        # One task for each attempt that may run, not for each row.
        pending = iter(range(rows))
        workers = min(rows, client.attempts_max)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(self._infer_rows(client, request, pending, predictions, failures))
        except BaseExceptionGroup as several:
            # The tasks failed together; the first error is reported.
            raise several.exceptions[0] from None
        good = [prediction for row, prediction in enumerate(predictions) if row not in failures]
        model = self._address.model
        try:
            outputs = outputs_from_responses(good, self._response_layout(good)) if good else ()
        except ModelContractError as error:
            raise ModelContractError(model, f"request {request.id}: {error.why}") from error
        return InferResponse(
            _select_outputs(outputs, request, model) if request.outputs and good else outputs,
            model,
            self._address.version,
            id=request.id,
            failures=tuple(failures[row] for row in sorted(failures)),
        )

    async def infer_whole(self, client: RetryingClient, request: InferRequest) -> InferResponse:
        """Send each row of a request. Raises RefusedRowsError if the endpoint refuses one."""
        response = await self.infer(client, request, request.rows)
        if response.failures:
            raise RefusedRowsError(self._address.model, response.failures[0].why)
        return response

    def _response_layout(self, predictions: list[Any]) -> ResponseLayout:
        if self._layout is None:
            self._layout = ResponseLayout.from_responses(predictions)
        return self._layout

    async def _infer_rows(
        self,
        client: RetryingClient,
        request: InferRequest,
        pending: Iterator[int],
        predictions: list[Any],
        failures: dict[int, RowFailure],
    ) -> None:
        """Send rows from the shared iterator until it is empty."""
        for row in pending:
            try:
                body = encode_row(request.inputs, row)
                headers = {"Content-Type": body.content_type}
                http_request = HttpRequest("POST", self._address.predict_url, body.body, headers)
                response = await client.request(http_request, classify_torchserve_response)
            except DataError as error:
                self._refuse(RowFailure(row, str(error)), failures, None)
            except RowsRefusedError as error:
                self._refuse(RowFailure(row, error.why, error.attempts), failures, error.status)
            else:
                self._guard.record_success(1)
                predictions[row] = decode_body(response.body)

    def _refuse(self, failure: RowFailure, failures: dict[int, RowFailure], status: int | None) -> None:
        failures[failure.row] = failure
        self._guard.record_refusal(failure.why, status)


def _select_outputs(outputs: tuple[Tensor, ...], request: InferRequest, model: str) -> tuple[Tensor, ...]:
    """Return the outputs that the request names, in its order."""
    found = {t.name: t for t in outputs}
    require_outputs(request, found, model)
    return tuple(found[n] for n in request.outputs)


def classify_torchserve_response(response: HttpResponse) -> ResponseKind:
    """Return the kind of a response by its status and error type.

    TorchServe sends 503 for a handler that raised as well as for overload, and 400 for a wrong key.
    """
    if response.status == 503 and decode_error_body(response.body).type == "InternalServerException":
        return ResponseKind.RETRY_BRIEFLY
    if response.status == 400 and decode_error_body(response.body).type == "InvalidKeyException":
        return ResponseKind.REQUEST_REFUSED
    return classify_response(response)
