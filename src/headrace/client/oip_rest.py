"""Asks a model by the Open Inference Protocol over REST: a batch a request, binary tensors where they are taken.

Arrives: requests. Leaves: responses whose failures are the rows that the endpoint refused. Runs in one event loop.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import orjson

from headrace.batching.bisect import Bisection
from headrace.client.address import Address
from headrace.client.asking import Asker, RowsRefusedError
from headrace.client.connection import HttpCall
from headrace.client.outputs import joined, part_of, require_rows
from headrace.client.refusals import RefusalGuard
from headrace.client.retry import HttpAnswer, Verdict, judge
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
from headrace.protocols.oip_json import (
    HEADER_LENGTH,
    decode_metadata,
    decode_response,
    encode_request,
    header_length,
)

_log = logging.getLogger("headrace.client")

_NO_BINARY = frozenset({406, 415, 501})
"""Refusals that mean the form of a request, as long as nothing is known of what the endpoint takes."""


@dataclass(slots=True)
class _Form:
    """Whether requests travel as binary data; None until the first is answered."""

    binary: bool | None = None


class OipRest:
    """One endpoint's model, from one start to the next. Implements `predictor.Dialect`.

    The first request is sent with binary tensors; if it is refused so, but taken as JSON, all others are JSON.
    """

    def __init__(self, address: Address, guard: RefusalGuard) -> None:
        self._address = address
        self._guard = guard
        self._form = _Form()
        self._deciding = asyncio.Lock()
        self._metadata = ModelMetadata(address.model, address.version)
        self._datatypes: dict[str, str] = {}

    async def describe(self, asker: Asker) -> ModelMetadata:
        """The model's metadata; what the endpoint does not tell is empty.

        BF16 tensors are told as FP32, which they are taken and given as. Raises EndpointError.
        """
        url = self._address.model_url
        try:
            answer = await asker.ask(HttpCall("GET", url))
        except EndpointRefusedError as error:
            if error.status not in (405, 501):
                raise
            # It knows the model, but nothing about metadata (of a version, often).
            return self._metadata
        try:
            told = decode_metadata(answer.body)
        except DataError as error:
            raise EndpointError(
                url, f"it answers, but not with a model's metadata: {error}", status=answer.status
            ) from error
        self._datatypes = {s.name: s.datatype for s in told.inputs}
        rows_max = await self._rows_max(asker, told)
        self._metadata = replace(
            told,
            name=told.name or self._address.model,
            version=self._address.version or told.version,
            inputs=tuple(map(_widened, told.inputs)),
            outputs=tuple(map(_widened, told.outputs)),
            max_batch_rows=rows_max,
        )
        return self._metadata

    async def _rows_max(self, asker: Asker, told: ModelMetadata) -> int:
        """The most rows for one request: a fixed first axis, else Triton's configuration, else our own default."""
        fixed = [s.shape[0] for s in told.inputs if s.shape and s.shape[0] > 0]
        if fixed:
            return min(fixed)
        default = self._metadata.max_batch_rows
        try:
            answer = await asker.ask(HttpCall("GET", f"{self._address.model_url}/config"), retry_s=0.0)
            found: Any = orjson.loads(answer.body)
        except (EndpointRefusedError, EndpointUnavailableError, orjson.JSONDecodeError):
            # Only Triton has it.
            return default
        rows = cast("dict[str, Any]", found).get("max_batch_size") if isinstance(found, dict) else None
        return min(rows, default) if isinstance(rows, int) and rows > 0 else default

    async def answer(self, asker: Asker, request: InferRequest, rows: int) -> InferResponse:
        """Ask about all rows, in requests of at most `max_batch_rows`; refused batches are bisected.

        Raises EndpointError when it is not about some rows, and ModelContractError when rows are missing.
        """
        kept: list[Sequence[Tensor]] = []
        failures: list[RowFailure] = []
        rows_max = self._metadata.max_batch_rows
        for start in range(0, rows, rows_max):
            stop = min(start + rows_max, rows)
            part = request if stop - start == rows else part_of(request, slice(start, stop))
            failures.extend(
                RowFailure(f.row + start, f.why, f.attempts)
                for f in await self._answer_batch(asker, part, stop - start, kept)
            )
        return InferResponse(
            joined(self._metadata.name, request.id, kept),
            self._metadata.name,
            self._metadata.version,
            id=request.id,
            failures=tuple(failures),
        )

    async def _answer_batch(
        self, asker: Asker, request: InferRequest, rows: int, kept: list[Sequence[Tensor]]
    ) -> tuple[RowFailure, ...]:
        """Ask once; if the batch is refused, bisect it. Adds to `kept` the outputs of its good rows, in order."""
        search = Bisection(rows)
        while (indices := search.next()) is not None:
            part = request if len(indices) == rows else part_of(request, indices)
            try:
                outputs = await self._ask(asker, part)
            except (RowsRefusedError, DataError) as error:
                why = error.why if isinstance(error, EndpointError) else str(error)
                if len(indices) == 1:
                    self._guard.refused(why, getattr(error, "status", None))
                search.failed(why)
                continue
            require_rows(request, outputs, len(indices), self._metadata.name)
            self._guard.answered(len(indices))
            kept.append(outputs)
            search.succeeded()
        return search.failures

    async def _ask(self, asker: Asker, request: InferRequest) -> tuple[Tensor, ...]:
        """One request in the form that the endpoint takes. DataError: these values cannot travel so."""
        if self._form.binary is None:
            # One at a time, until one is answered.
            async with self._deciding:
                if self._form.binary is None:
                    return await self._ask_and_decide(asker, request)
        return await self._post(asker, request, binary=self._form.binary)

    async def _ask_and_decide(self, asker: Asker, request: InferRequest) -> tuple[Tensor, ...]:
        try:
            outputs = await self._post(asker, request, binary=True)
        except RowsRefusedError as refusal:
            # Wrong rows are refused in either form, and then nothing is decided.
            try:
                outputs = await self._post(asker, request, binary=False)
            except DataError:
                raise refusal from None
            self._form.binary = False
            _log.info(
                "%s takes no binary tensors (%s): asking with JSON", self._address.model_url, refusal.why
            )
            return outputs
        self._form.binary = True
        return outputs

    async def _post(self, asker: Asker, request: InferRequest, *, binary: bool) -> tuple[Tensor, ...]:
        wire = encode_request(request, binary=binary, datatypes=self._datatypes)
        call = HttpCall("POST", self._address.predict_url, wire.body, wire.headers)
        answer = await asker.ask(call, _judge_undecided if self._form.binary is None and binary else judge)
        try:
            json_bytes = header_length(answer.headers.get(HEADER_LENGTH.lower()))
            return decode_response(answer.body, json_bytes, bf16="float32").outputs
        except DataError as error:
            raise EndpointError(
                call.url,
                f"its answer is not one of the Open Inference Protocol: {error}",
                status=answer.status,
            ) from error


def _judge_undecided(answer: HttpAnswer) -> Verdict:
    return Verdict.REFUSED if answer.status in _NO_BINARY else judge(answer)


def _widened(spec: TensorSpec) -> TensorSpec:
    return replace(spec, datatype="FP32") if spec.datatype == "BF16" else spec
