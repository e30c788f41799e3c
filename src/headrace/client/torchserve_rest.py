"""TorchServe's ``POST /predictions/NAME``, for predictors: one row a request.

TorchServe forms batches itself. Refused rows become failures of the response. Runs in one event
loop.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

from headrace.client.address import EndpointAddress
from headrace.client.connection_pool import HttpRequest
from headrace.client.outputs import require_outputs
from headrace.client.predictor import EndpointProtocol
from headrace.client.refusals import RefusalGuard
from headrace.client.retry import HttpResponse, ResponseKind, classify_response
from headrace.client.retrying_client import RetryingClient, RowsRefusedError
from headrace.core.errors import DataError, ModelContractError
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata, RowFailure, Tensor
from headrace.protocols.torchserve import (
    ResponseLayout,
    decode_body,
    decode_error_body,
    encode_row,
    outputs_from_responses,
)

ROWS_MAX = 64
"""The row limit of one request. Each row is an HTTP request; 64 fill several batches."""


class TorchServeProtocol(EndpointProtocol):
    """The protocol for one model of an endpoint, from one start to the next.

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
