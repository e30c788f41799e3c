"""The Open Inference Protocol over REST, for predictors: one batch a request.

Tensors are binary where the endpoint accepts that. Refused rows become failures of the response.
Runs in one event loop.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import orjson

from headrace.batching.bisect import Bisection
from headrace.client.address import EndpointAddress
from headrace.client.connection_pool import HttpRequest
from headrace.client.outputs import join_outputs, require_rows, select_rows
from headrace.client.predictor import EndpointProtocol
from headrace.client.refusals import RefusalGuard
from headrace.client.retry import HttpResponse, ResponseKind, classify_response
from headrace.client.retrying_client import RetryingClient, RowsRefusedError
from headrace.core.errors import (
    DataError,
    EndpointError,
    EndpointRefusedError,
    EndpointUnavailableError,
)
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

_log = logging.getLogger("headrace.client")

_ENCODING_REFUSED_STATUSES = frozenset({406, 415, 501})
"""Statuses that refuse the encoding of a request, while the encoding is unknown."""


@dataclass(slots=True)
class _Encoding:
    """The encoding of requests: binary or JSON; None until the first response."""

    binary: bool | None = None


class OipRestProtocol(EndpointProtocol):
    """The protocol for one model of an endpoint, from one start to the next.

    The first request has binary tensors. If the endpoint refuses it but accepts JSON, all others
    are JSON.
    """

    def __init__(self, address: EndpointAddress, guard: RefusalGuard) -> None:
        self._address = address
        self._guard = guard
        self._encoding = _Encoding()
        self._probe_lock = asyncio.Lock()
        self._metadata = ModelMetadata(address.model, address.version)
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
                outputs = await self._infer_once(client, part)
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

    async def _infer_once(self, client: RetryingClient, request: InferRequest) -> tuple[Tensor, ...]:
        """Send one request in the encoding that the endpoint accepts.

        Raises DataError if the encoding cannot represent the values.
        """
        if self._encoding.binary is None:
            # One request at a time, until the encoding is known.
            async with self._probe_lock:
                if self._encoding.binary is None:
                    return await self._probe_encoding(client, request)
        return await self._post(client, request, binary=self._encoding.binary)

    async def _probe_encoding(self, client: RetryingClient, request: InferRequest) -> tuple[Tensor, ...]:
        try:
            outputs = await self._post(client, request, binary=True)
        except RowsRefusedError as refusal:
            # Both encodings fail for bad rows; then the encoding stays unknown.
            try:
                outputs = await self._post(client, request, binary=False)
            except DataError:
                raise refusal from None
            self._encoding.binary = False
            _log.info("%s accepts no binary tensors (%s): using JSON", self._address.model_url, refusal.why)
            return outputs
        self._encoding.binary = True
        return outputs

    async def _post(
        self, client: RetryingClient, request: InferRequest, *, binary: bool
    ) -> tuple[Tensor, ...]:
        wire = encode_request(request, binary=binary, datatypes=self._datatypes)
        http_request = HttpRequest("POST", self._address.predict_url, wire.body, wire.headers)
        response = await client.request(
            http_request,
            _classify_probe_response if self._encoding.binary is None and binary else classify_response,
        )
        try:
            json_bytes = parse_header_length(response.headers.get(HEADER_LENGTH.lower()))
            return decode_response(response.body, json_bytes, bf16="float32").outputs
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
