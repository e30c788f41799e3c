"""An instance that is called by whoever asks, on its thread or its event loop: for models that take less than a hop to a thread."""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.core.clock import Clock
from headrace.core.errors import StoppedError
from headrace.core.tensor import Array, InferRequest, InferResponse, Tensor
from headrace.engine.backend import Backend, LocalBackend
from headrace.engine.instance import BeforeCall, Instance
from headrace.engine.outputs import OutputCheck
from headrace.engine.tally import Tally
from headrace.engine.ticket import Answer, Ticket


class _Plain(NamedTuple):
    """What the short way needs to know of a model."""

    name: str
    version: str | None
    exact_rows: Callable[[InferRequest], int | None]
    rows_max: int
    writes_inputs: bool
    predict: Callable[..., Any]
    awaited: Callable[[Any], Any]
    check: OutputCheck


def _plain(backend: Backend) -> _Plain | None:
    metadata, inputs = backend.metadata, backend.inputs
    if not isinstance(backend, LocalBackend) or inputs.exact is None or inputs.positional:
        return None
    if metadata.whole_requests or metadata.streams or not metadata.predicts:
        return None
    return _Plain(
        metadata.name,
        metadata.version,
        inputs.exact_rows,
        backend.rows_max,
        backend.writes_inputs,
        backend.predict,
        backend.awaited,
        backend.check,
    )


class Inline:
    """Calls its instance for one ticket at a time, whichever thread asks."""

    def __init__(
        self,
        instance: Instance,
        backend: Backend,
        tally: Tally,
        clock: Clock,
        *,
        before_call: BeforeCall,
        stopped: Callable[[str], StoppedError],
    ) -> None:
        self.backend = backend
        self._plain = _plain(backend)
        self._instance = instance
        self._tally = tally
        self._now = clock.now
        self._before_call = before_call
        self._stopped = stopped
        self._lock = threading.Lock()
        """Held while the model is called."""
        self._over = False

    def answer(self, ticket: Ticket) -> Answer:
        """Call the model now. What the ticket comes to is counted."""
        with self._lock:
            if self._over:
                return self._stopped("it is stopping")
            began_s = self._now()
            answer = self._instance.answer_alone(ticket, self._before_call)
            self._ended(ticket, answer, began_s, self._now())
        return answer

    def _ended(self, ticket: Ticket, answer: Answer, began_s: float, ended_s: float) -> None:
        tally = self._tally
        tally.ended_s = ended_s
        tally.busy_s += ended_s - began_s
        ticket.ended = True
        tally.ended(ticket, answer, began_s, ended_s)

    def answer_plainly(self, request: InferRequest) -> InferResponse | None:
        """The short way, for what nearly every request is: exactly as the model declares it, and nothing asked besides.

        None: it is another one, which `answer` takes. Raises what the call came to. What this says and counts is what `answer` would;
        it makes few steps, since what is found in no cache takes longer to come than to run.
        """
        plain = self._plain
        if plain is None or request.deadline is not None or request.outputs:
            return None
        rows = plain.exact_rows(request)
        if rows is None or not 0 < rows <= plain.rows_max:
            return None
        tensors: dict[str, Array] = {}
        for tensor in request.inputs:
            data = tensor.data
            if not data.flags.c_contiguous:
                return None
            tensors[tensor.name] = data.copy() if plain.writes_inputs else data
        tally = self._tally
        with self._lock:
            if self._over:
                return None
            began_s = self._now()
            failure: BaseException | None = None
            try:
                returned = plain.predict(**tensors)
                outputs = plain.check(plain.awaited(returned), rows, request.id)
            except BaseException as error:  # noqa: BLE001 - whatever a model raises becomes its request's error
                outputs, failure = {}, self._instance.failure(error)
            ended_s = self._now()
            if failure is None:
                tally.ended_at_once(rows, ended_s - began_s, ended_s)
            else:
                tally.calls += 1
                ticket = Ticket(request, rows, began_s, NOWHERE, strict=True)
                self._ended(ticket, failure, began_s, ended_s)
        if failure is not None:
            raise failure
        return InferResponse(
            tuple([Tensor(name, data) for name, data in outputs.items()]),
            plain.name,
            plain.version,
            request.id,
        )

    def close(self) -> None:
        """Let a call in progress end, and call no more."""
        with self._lock:
            self._over = True


class Nowhere:
    """The reply of a ticket whose caller is handed the answer."""

    loop = None

    def begin(self) -> bool:
        """See `Reply`."""
        return True

    def give(self, answer: Answer) -> None:
        """See `Reply`."""
        del answer


NOWHERE = Nowhere()
