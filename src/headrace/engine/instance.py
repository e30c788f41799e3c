"""One instance: makes calls of the model out of requests, and answers out of what it returns.

Arrives: a batch of tickets. Leaves: an answer for each. A failing batch is bisected, first by request, then by row, so that
only the guilty ones fail. Everything here runs in the instance's own thread.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from headrace.batching.bisect import Bisection
from headrace.core.clock import Clock
from headrace.core.errors import (
    CancelledRequestError,
    DeadlineError,
    HeadraceError,
    InstanceLostError,
    ModelContractError,
    ModelInputError,
    RefusedRowsError,
    StoppedError,
)
from headrace.core.model import RowError
from headrace.core.tensor import Array, InferRequest, InferResponse, RowFailure, Tensor
from headrace.engine.backend import Backend, Called
from headrace.engine.outputs import Outputs, wanted
from headrace.engine.reason import WHY_CHARS_MAX, failure, reason, room
from headrace.engine.tally import Tally
from headrace.engine.ticket import Answer, Ticket

_log = logging.getLogger("headrace.engine")

_NOT_ABOUT_ROWS = (
    ModelContractError,
    ModelInputError,
    DeadlineError,
    StoppedError,
    CancelledRequestError,
    InstanceLostError,
)
"""Errors that no bisection can cure: they end the request."""

BeforeCall = Callable[[Ticket], None]
"""Raises what ends this request, when it need not be answered any more."""


def over(ticket: Ticket, before_call: BeforeCall) -> HeadraceError | None:
    """What ends this request, when it need not be answered any more."""
    try:
        before_call(ticket)
    except HeadraceError as error:
        return error
    return None


class RunningCall:
    """What a model can ask about the call that it is in (`headrace.core.call.Call`)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.tickets: Sequence[Ticket] = ()

    @property
    def deadline_s(self) -> float | None:
        """See `Call`."""
        deadlines = [t.request.deadline for t in self.tickets if not t.cancelled]
        latest = max((d for d in deadlines if d is not None), default=None)
        return None if latest is None or None in deadlines else latest - self._clock.now()

    @property
    def cancelled(self) -> bool:
        """See `Call`."""
        tickets = self.tickets
        now = self._clock.now()
        return bool(tickets) and not any(t.alive(now) for t in tickets)


class Instance:
    """Answers batches of tickets with one backend; the tally counts its calls."""

    def __init__(self, backend: Backend, name: str, clock: Clock, tally: Tally | None = None) -> None:
        self._backend = backend
        self._name = name
        self._rows_max = backend.rows_max
        self._whole_requests = backend.metadata.whole_requests
        self._version = backend.metadata.version
        self._running = RunningCall(clock)
        self._clock = clock
        self._guard = threading.Lock()
        """Held where the call in progress is looked at, and where it ends, so that no other is cancelled in its place."""
        self.tally = tally or Tally()
        self.died_in: Sequence[Ticket] = ()
        """Whose call it was that raised InstanceLostError last."""

    def gone(self) -> None:
        """Somebody has left: when nobody is left who waits for the call in progress, it is cancelled. Any thread."""
        with self._guard:
            if self._running.cancelled:
                self._backend.cancel()

    def answer_all(self, tickets: Sequence[Ticket], before_call: BeforeCall) -> list[tuple[Ticket, Answer]]:
        """Answer every ticket, in one call of the model where all goes well. Several tickets share one `key`.

        InstanceLostError alone is raised: then nobody is answered yet.
        """
        if len(tickets) == 1:
            return [(tickets[0], self.answer_alone(tickets[0], before_call))]
        answered: list[tuple[Ticket, Answer]] = []
        groups = [list(tickets)]
        while groups:
            asked = groups.pop()
            retry = len(asked) < len(tickets)
            going = [t for t in asked if not self._over(t, before_call, answered)]
            if len(going) == 1:
                answered.append((going[0], self.answer_alone(going[0], before_call)))
            elif going:
                groups += self._answer_together(going, before_call, answered, retry=retry)
        return answered

    def _over(self, ticket: Ticket, before_call: BeforeCall, answered: list[tuple[Ticket, Answer]]) -> bool:
        """Whether a ticket need not be run with others; then it is answered."""
        answer = over(ticket, before_call) if ticket.rows else self.answer_alone(ticket, before_call)
        if answer is not None:
            answered.append((ticket, answer))
        return answer is not None

    def _answer_together(
        self,
        tickets: Sequence[Ticket],
        before_call: BeforeCall,
        answered: list[tuple[Ticket, Answer]],
        *,
        retry: bool,
    ) -> list[list[Ticket]]:
        """One call for several tickets; when it failed, those that are to be tried again, parted, the last group first."""
        rows = sum(t.rows for t in tickets)
        if rows > self._rows_max:
            return _halves(tickets)  # since smaller batches are all that there is memory for
        parts = [{i.name: i.data for i in t.request.inputs} for t in tickets]
        try:
            outputs = self._call(tickets, parts, rows, "", retry=retry)
        except InstanceLostError:
            raise
        except CancelledRequestError as error:
            if any(t.alive(self._clock.now()) for t in tickets):
                return _halves(tickets)
            answered.extend((t, over(t, before_call) or error) for t in tickets)
            return []
        except RowError as error:
            return self._answer_apart(tickets, error, before_call, answered)
        except BaseException as error:  # noqa: BLE001 - whose fault it was is found out by parting them
            _log.debug("batch failed", extra={"model": self._name, "rows": rows}, exc_info=True)
            self._learn_room(error, rows)
            return _halves(tickets)
        start = 0
        for ticket in tickets:
            stop = start + ticket.rows
            if not self._over(ticket, before_call, answered):
                own = {n: d[start:stop] for n, d in outputs.items()}
                answered.append((ticket, self._checked_response(own, ticket)))
            start = stop
        return []

    def _answer_apart(
        self,
        tickets: Sequence[Ticket],
        refused: RowError,
        before_call: BeforeCall,
        answered: list[tuple[Ticket, Answer]],
    ) -> list[list[Ticket]]:
        """The model named guilty rows: their requests are answered one by one; the others are to be tried together."""
        guilty: list[Ticket] = []
        others: list[Ticket] = []
        start = 0
        for ticket in tickets:
            own = range(start, start + ticket.rows)
            (guilty if any(row in own for row in refused.rows) else others).append(ticket)
            start += ticket.rows
        if not guilty:
            return _halves(tickets)
        answered.extend((t, self.answer_alone(t, before_call)) for t in guilty)
        return [others] if others else []

    def _checked_response(self, outputs: Outputs, ticket: Ticket) -> Answer:
        try:
            return self._response(outputs, ticket.request, ())
        except ModelInputError as error:
            return error

    def answer_alone(self, ticket: Ticket, before_call: BeforeCall) -> Answer:
        """One ticket by itself: what it comes to, an error included, but for InstanceLostError, which is raised."""
        try:
            before_call(ticket)
            try:
                answer = self.answer(ticket, before_call)
            except CancelledRequestError:
                if not ticket.alive(self._clock.now()):
                    raise
                # It was meant for another call.
                answer = self.answer(ticket, before_call)
            before_call(ticket)
        except InstanceLostError:
            raise
        except BaseException as error:  # noqa: BLE001 - SystemExit in a model must not kill its thread
            # A model that is told that nobody waits may raise anything.
            return over(ticket, before_call) or self.failure(error)
        return answer

    def failure(self, error: BaseException) -> BaseException:
        """What a request comes to whose call raised this."""
        if not isinstance(error, RowError):
            return failure(self._name, error)
        told = self._refused(error)
        told.__cause__ = error
        return told

    def answer(self, ticket: Ticket, before_call: BeforeCall) -> InferResponse:
        """Predict a request of any size, in calls of at most `rows_max` rows; none for no rows.

        Rows that the model refuses are failures in the response, unless the ticket is strict: then they are the
        RefusedRowsError that this raises. `before_call` is called before every call of the model but the first, and ends the
        request with what it raises. Raises ModelContractError when the model returns something else than a row for
        each row.
        """
        request, rows = ticket.request, ticket.rows
        if ticket.strict and self._whole_requests:
            return self._call_whole(ticket)
        tensors = {t.name: t.data for t in request.inputs}
        if 0 < rows <= self._rows_max and ticket.strict:
            return self._response(self._call_strictly(ticket, tensors, rows), request, ())
        kept: list[Outputs] = []
        failures: list[RowFailure] = []
        start = stop = 0
        while stop < rows:
            start, stop = stop, min(stop + self._rows_max, rows)
            part = tensors if stop - start == rows else {n: d[start:stop] for n, d in tensors.items()}
            if start:
                before_call(ticket)
            if ticket.strict:
                kept.append(self._call_strictly(ticket, part, stop - start))
                continue
            outputs, refused = self._answer_rows(ticket, part, stop - start, before_call)
            kept.extend(outputs)
            failures.extend(RowFailure(f.row + start, f.why, f.attempts) for f in refused)
        joined = self._backend.check.joined(kept, request.id)
        return self._response(joined, request, tuple(failures))

    def _call_whole(self, ticket: Ticket) -> InferResponse:
        """One call for one request, by a model that wants it so."""
        request = ticket.request
        self.tally.calls += 1
        self._running.tickets = (ticket,)
        began_s = self._clock.now()
        try:
            response = self._backend.call_request(request, self._running)
        except RowError as error:
            raise self._refused(error) from error
        finally:
            with self._guard:
                self._running.tickets = ()
        self.tally.called(ticket.rows, Called({}, infer_s=self._clock.now() - began_s))
        if not request.outputs:
            return response
        names = wanted({t.name: t.data for t in response.outputs}, request, self._name)
        return replace(response, outputs=tuple(t for n in names for t in response.outputs if t.name == n))

    def _call_strictly(self, ticket: Ticket, tensors: Mapping[str, Array], rows: int) -> Outputs:
        try:
            return self._call((ticket,), (tensors,), rows, ticket.request.id)
        except RowError as error:
            raise self._refused(error) from error

    def _refused(self, error: RowError) -> RefusedRowsError:
        whys = "; ".join(
            f"row {row}: {str(why)[:WHY_CHARS_MAX]}" for row, why in sorted(error.rows.items())[:8]
        )
        return RefusedRowsError(self._name, whys or "it refused rows without naming them")

    def _answer_rows(
        self, ticket: Ticket, tensors: Mapping[str, Array], rows: int, before_call: BeforeCall
    ) -> tuple[list[Outputs], tuple[RowFailure, ...]]:
        """Call once; if the batch fails, bisect it. Outputs are over the good rows, in order."""
        search = Bisection(rows)
        kept: list[Outputs] = []
        request = ticket.request.id
        while (indices := search.next()) is not None:
            whole = len(indices) == rows
            if not whole:
                before_call(ticket)
            part = tensors if whole else {n: d.take(indices, axis=0) for n, d in tensors.items()}
            try:
                outputs = self._call(
                    (ticket,), (part,), len(indices), request, fresh=not whole, retry=not whole
                )
            except RowError as error:
                search.refused({row: str(why)[:WHY_CHARS_MAX] for row, why in error.rows.items()})
            except _NOT_ABOUT_ROWS:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a model raises is about its rows
                _log.debug("batch failed", extra={"model": self._name, "rows": len(indices)}, exc_info=True)
                self._learn_room(error, len(indices))
                search.failed(reason(error))
            else:
                kept.append(outputs)
                search.succeeded()
        return kept, search.failures

    def _learn_room(self, error: BaseException, rows: int) -> None:
        """When a batch failed for want of memory, ask for smaller ones from now on, and not for as large a one each time."""
        if rows <= self._rows_max and (rows_max := room(self._name, error, rows)) is not None:
            self._rows_max = rows_max

    def _call(
        self,
        tickets: Sequence[Ticket],
        parts: Sequence[Mapping[str, Array]],
        rows: int,
        request: str,
        *,
        fresh: bool = False,
        retry: bool = False,
    ) -> Outputs:
        self.tally.calls += 1
        self.tally.retries += retry
        self._running.tickets = tickets
        try:
            called = self._backend.call(parts, rows, request, self._running, fresh=fresh)
        except InstanceLostError:
            self.died_in = tickets
            raise
        finally:
            with self._guard:
                self._running.tickets = ()
        self.tally.called(rows, called)
        return called.outputs

    def _response(
        self, outputs: Outputs, request: InferRequest, failures: tuple[RowFailure, ...]
    ) -> InferResponse:
        chosen = wanted(outputs, request, self._name) if request.outputs and outputs else outputs
        return InferResponse(
            tuple([Tensor(name, data) for name, data in chosen.items()]),
            self._name,
            self._version,
            request.id,
            failures=failures,
        )


def _halves(tickets: Sequence[Ticket]) -> list[list[Ticket]]:
    half = len(tickets) // 2
    return [list(tickets[half:]), list(tickets[:half])]
