"""The one answer to a request whose rows are steps: what they gave, joined in the order of the rows."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from headrace.core.errors import (
    CancelledRequestError,
    DeadlineError,
    HeadraceError,
    ModelContractError,
    StoppedError,
)
from headrace.core.tensor import InferRequest, InferResponse, RowFailure
from headrace.engine.outputs import Outputs
from headrace.engine.reason import reason, unforeseen
from headrace.engine.steps.part import Part
from headrace.engine.ticket import Answer

_log = logging.getLogger("headrace.engine")

STEP_OUTPUTS_MAX: Final = 65_536
"""Outputs of steps that are gathered for a caller who wants one response; or one for each row, where those are more."""

_OF_ALL = (CancelledRequestError, DeadlineError, StoppedError)
"""Errors that are about a whole request."""

Respond = Callable[[list[Outputs], InferRequest, tuple[RowFailure, ...], Mapping[str, Any]], InferResponse]
"""Makes a response of outputs that are to be joined; raises ModelInputError and ModelContractError."""


class Gathered:
    """Gathers what the steps of one request give. Implements `headrace.engine.steps.part.Sink`.

    A strict request fails with the first of its rows that does. Of any other each row is answered by exactly one row of
    outputs, or is a failure; it fails as a whole where its time is over, or nobody is left to answer it.
    """

    def __init__(self, parts: int, *, strict: bool, model: str, respond: Respond) -> None:
        self._open = parts
        self._lock = threading.Lock()
        self._strict = strict
        self._model = model
        self._respond = respond
        self._given: list[tuple[int, Part, Outputs]] = []
        self._failed: dict[int, str] = {}
        self._error: BaseException | None = None

    def give(self, part: Part, row: int, outputs: Outputs, wakes: list[Callable[[], None]]) -> bool:
        """See `Sink`: there is room, or ModelContractError is raised."""
        del wakes
        most = max(STEP_OUTPUTS_MAX, part.ticket.rows)
        with self._lock:
            if part.over:
                raise CancelledRequestError("its sequence ended meanwhile")
            if len(self._given) < most:
                self._given.append((row, part, outputs))
                return True
        raise ModelContractError(
            self._model,
            f"its steps gave more than {most} outputs for one request, and it still goes on: ask for a stream",
        )

    def failed(self, part: Part, row: int, why: str) -> bool:
        """See `Sink`."""
        if self._strict:
            return False
        with self._lock:
            if part.over:
                return False
            self._failed[row] = why
        return True

    def over(self, part: Part, error: BaseException | None) -> Answer | None:
        """See `Sink`."""
        with self._lock:
            if part.over:
                return None
            part.over = True
            if error is not None:
                self._fail_rest(part, error)
            self._open -= 1
            if self._open:
                return None
        if self._error is not None:
            self._given.clear()
            return self._error
        try:
            return self._response(part)
        except HeadraceError as raised:
            return raised
        except Exception as raised:  # noqa: BLE001 - such as for want of memory: it costs this request
            _log.exception(
                "steps were done, and their outputs could not be joined", extra={"model": self._model}
            )
            return unforeseen(self._model, raised)

    def when_room(self, wake: Callable[[], None]) -> bool:
        """See `Sink`: there is always room."""
        del wake
        return False

    def rewind(self, part: Part) -> bool:
        """See `Sink`: nobody has seen anything."""
        with self._lock:
            if part.over:
                return True
            self._given = [given for given in self._given if given[1] is not part]
            for row in part.indices(0):
                self._failed.pop(row, None)
        return True

    def _fail_rest(self, part: Part, error: BaseException) -> None:
        if self._strict or not part.rows or isinstance(error, _OF_ALL):
            self._error = self._error or error
            return
        for row in part.indices(part.row):
            self._failed.setdefault(row, reason(error))

    def _response(self, part: Part) -> InferResponse:
        request = part.ticket.request
        # They name their parts, which name this: nothing of a request is to stay until somebody looks for circles.
        given, self._given = self._given, []
        if len(given) > 1:
            given.sort(key=lambda one: one[0])
        if not self._strict:
            self._demand_one_each(given, part.ticket.rows)
            given = [one for one in given if one[0] not in self._failed]
        failures = tuple(RowFailure(row, why) for row, why in sorted(self._failed.items()))
        return self._respond([outputs for _, _, outputs in given], request, failures, told(part))

    def _demand_one_each(self, given: Iterable[tuple[int, Part, Outputs]], rows: int) -> None:
        counts = [0] * rows
        for row, _, _ in given:
            counts[row] += 1
        for row, count in enumerate(counts):
            if count != 1 and row not in self._failed:
                self._failed[row] = (
                    f"its steps gave {count} rows of outputs, where one is wanted for each row"
                )


def told(part: Part) -> Mapping[str, Any]:
    """What a caller is told of a request's sequence: its id, as it was given, and whether it has ended."""
    sequence = part.sequence
    if sequence is None or sequence.anonymous or part.which is not None:
        return {}
    parameters: dict[str, Any] = {"sequence_id": part.parameters.get("sequence_id") or sequence.id}
    if sequence.why is not None or part.ending:
        parameters["sequence_end"] = True
    return parameters
