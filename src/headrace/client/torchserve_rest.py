"""Asks a model by TorchServe's ``POST /predictions/NAME``: a request a row, since TorchServe makes its own batches.

Arrives: requests. Leaves: responses whose failures are the rows that the endpoint refused. Runs in one event loop.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

from headrace.client.address import Address
from headrace.client.asking import Asker, RowsRefusedError
from headrace.client.connection import HttpCall
from headrace.client.outputs import require_outputs
from headrace.client.refusals import RefusalGuard
from headrace.client.retry import HttpAnswer, Verdict, judge
from headrace.core.errors import DataError, ModelContractError
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata, RowFailure, Tensor
from headrace.protocols.torchserve import (
    AnswerForm,
    decode_body,
    decode_error_body,
    encode_row,
    gather_answers,
)

ROWS_MAX = 64
"""Rows of one request, each of which is a request of its own: enough for several batches of TorchServe's."""


class TorchServeRest:
    """One endpoint's model, from one start to the next. Implements `predictor.Dialect`.

    What answers look like is decided by the first request's (see `AnswerForm`).
    """

    def __init__(self, address: Address, guard: RefusalGuard) -> None:
        self._address = address
        self._guard = guard
        self._form: AnswerForm | None = None

    async def describe(self, asker: Asker) -> ModelMetadata:
        """Name and version; TorchServe tells nothing of inputs, and its first answer shows whether it is there."""
        del asker
        address = self._address
        return ModelMetadata(address.model, address.version, "torchserve", max_batch_rows=ROWS_MAX)

    async def answer(self, asker: Asker, request: InferRequest, rows: int) -> InferResponse:
        """Ask about each row. Raises EndpointError when it is not about some rows, and ModelContractError."""
        answers: list[Any] = [None] * rows
        failures: dict[int, RowFailure] = {}
        # Not a task a row: no more can be under way than the asker lets.
        left = iter(range(rows))
        workers = min(rows, asker.attempts_max)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(self._ask_rows(asker, request, left, answers, failures))
        except BaseExceptionGroup as several:
            # They failed together; the first says why.
            raise several.exceptions[0] from None
        good = [answer for row, answer in enumerate(answers) if row not in failures]
        model = self._address.model
        try:
            outputs = gather_answers(good, self._answer_form(good)) if good else ()
        except ModelContractError as error:
            raise ModelContractError(model, f"request {request.id}: {error.why}") from error
        return InferResponse(
            _wanted(outputs, request, model) if request.outputs and good else outputs,
            model,
            self._address.version,
            id=request.id,
            failures=tuple(failures[row] for row in sorted(failures)),
        )

    def _answer_form(self, answers: list[Any]) -> AnswerForm:
        if self._form is None:
            self._form = AnswerForm.of(answers)
        return self._form

    async def _ask_rows(
        self,
        asker: Asker,
        request: InferRequest,
        left: Iterator[int],
        answers: list[Any],
        failures: dict[int, RowFailure],
    ) -> None:
        """Take the rows that nobody has taken yet, one after another."""
        for row in left:
            try:
                body = encode_row(request.inputs, row)
                headers = {"Content-Type": body.content_type}
                call = HttpCall("POST", self._address.predict_url, body.body, headers)
                answer = await asker.ask(call, judge_torchserve)
            except DataError as error:
                self._refuse(RowFailure(row, str(error)), failures, None)
            except RowsRefusedError as error:
                self._refuse(RowFailure(row, error.why, error.attempts), failures, error.status)
            else:
                self._guard.answered(1)
                answers[row] = decode_body(answer.body)

    def _refuse(self, failure: RowFailure, failures: dict[int, RowFailure], status: int | None) -> None:
        failures[failure.row] = failure
        self._guard.refused(failure.why, status)


def _wanted(outputs: tuple[Tensor, ...], request: InferRequest, model: str) -> tuple[Tensor, ...]:
    """The outputs that the request asks for, in its order."""
    found = {t.name: t for t in outputs}
    require_outputs(request, found, model)
    return tuple(found[n] for n in request.outputs)


def judge_torchserve(answer: HttpAnswer) -> Verdict:
    """TorchServe says 503 for a handler that raised as well as for too much load, and 400 for a wrong key."""
    if answer.status == 503 and decode_error_body(answer.body).type == "InternalServerException":
        return Verdict.RETRY_BRIEFLY
    if answer.status == 400 and decode_error_body(answer.body).type == "InvalidKeyException":
        return Verdict.REFUSED_WHOLE
    return judge(answer)
