"""Asks an endpoint until it answers: attempts, waits between them, the circuit, and the bound on all of it.

Arrives: a call, and how to judge its answer. Leaves: an answer of 2xx, or an error that says what it is about.
Everything here runs in one event loop.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from headrace.client.circuit import Circuit, CircuitState
from headrace.client.connection import Connection, HttpCall
from headrace.client.retry import (
    BRIEF_ATTEMPTS_MAX,
    HttpAnswer,
    TransientFault,
    Verdict,
    explain,
    judge,
)
from headrace.core.clock import Clock
from headrace.core.errors import EndpointRefusedError, EndpointUnavailableError
from headrace.core.retry import RetryPolicy, retry_after_s
from headrace.protocols.oip_json import decode_error

_log = logging.getLogger("headrace.client")

Sleep = Callable[[float], Awaitable[None]]
Judge = Callable[[HttpAnswer], Verdict]


class RowsRefusedError(EndpointRefusedError):
    """A refusal that may be about some of the rows only; it stays inside the room while rows are left to part."""

    attempts: int = 1
    """How often it was asked until it was refused for good."""


class _Request:
    """What one request has been through. Its budget begins with its first trouble."""

    def __init__(self, call: HttpCall, retry_s: float) -> None:
        self.call = call
        self.retry_s = retry_s
        self.attempts = 0
        self.brief_attempts = 0
        self.trouble_at_s: float | None = None

    def left_s(self, now_s: float) -> float:
        """What is left of the budget; notes the trouble's beginning."""
        if self.trouble_at_s is None:
            self.trouble_at_s = now_s
        return self.retry_s - (now_s - self.trouble_at_s)


class Asker:
    """Sends calls, at most `attempts_max` at once, and repeats what may pass.

    Never more than one attempt is under way while the circuit is not closed. `calls`, `retries`, `busy_s()` and
    `state` may be read from any thread.
    """

    def __init__(
        self,
        connection: Connection,
        circuit: Circuit,
        *,
        policy: RetryPolicy,
        timeout_s: float,
        attempts_max: int,
        clock: Clock,
        sleep: Sleep = asyncio.sleep,
        seed: int | None = None,
    ) -> None:
        self._connection = connection
        self._circuit = circuit
        self._policy = policy
        self._timeout_s = timeout_s
        self._clock = clock
        self._sleep = sleep
        self._random = random.Random(seed)  # noqa: S311 - jitter, not a secret
        self._slots = asyncio.Semaphore(attempts_max)
        self._changed = asyncio.Event()
        self.attempts_max = attempts_max
        self.calls = 0
        self.retries = 0
        self._under_way = 0
        self._busy_s = 0.0
        self._busy_from_s = 0.0
        self._first_s: float | None = None

    @property
    def state(self) -> CircuitState:
        """The circuit's."""
        return self._circuit.state

    def busy_s(self) -> tuple[float, float]:
        """Seconds with an attempt under way, and seconds without one, since the first."""
        if self._first_s is None:
            return 0.0, 0.0
        now_s = self._clock.now()
        busy_s = self._busy_s + (now_s - self._busy_from_s if self._under_way else 0.0)
        return busy_s, max(0.0, now_s - self._first_s - busy_s)

    async def ask(self, call: HttpCall, judged: Judge = judge, *, retry_s: float | None = None) -> HttpAnswer:
        """An answer of 2xx.

        Raises:
            RowsRefusedError: Refused, and perhaps only some rows are to blame.
            EndpointRefusedError: Refused; no request like this can succeed.
            EndpointUnavailableError: Not answered within `retry_s` (the policy's unless given) of the first trouble.
        """
        request = _Request(call, self._policy.retry_s if retry_s is None else retry_s)
        while True:
            async with self._slots:
                # No await between admission and attempt: what was admitted is what goes.
                admission = self._circuit.admit(self._clock.now())
                outcome = (
                    await self._attempt(request, judged, probe=admission.probe) if admission.go else None
                )
            if isinstance(outcome, HttpAnswer):
                return outcome
            left_s = request.left_s(self._clock.now())
            if outcome is None:
                if left_s <= 0:
                    raise self._unavailable(request)
                await self._wait_for_change(min(left_s, admission.wait_s or left_s))
                continue
            delay_s = self._policy.delay_s(
                request.attempts, left_s, self._random.random(), retry_after_s=outcome.retry_after_s
            )
            if delay_s is None:
                raise self._unavailable(request) from outcome
            _log.debug("%s: asking again in %.2f s: %s", call.url, delay_s, outcome)
            self.retries += 1
            await self._sleep(delay_s)

    async def _attempt(self, request: _Request, judged: Judge, *, probe: bool) -> HttpAnswer | TransientFault:
        """One attempt, told to the circuit whatever becomes of it."""
        self.calls += 1
        request.attempts += 1
        self._begin()
        reported = False
        try:
            answer = await self._connection.send(request.call, self._timeout_s)
            verdict = judged(answer)
            fault = self._fault(answer, verdict, request)
            self._report(fault, probe=probe)
            reported = True
        except TransientFault as lost:
            self._report(lost, probe=probe)
            reported = True
            return lost
        finally:
            self._end()
            if probe and not reported:
                self._circuit.abandoned()
                self._notify()
        if fault is not None:
            return fault
        return self._judged(request, answer, verdict)

    def _fault(self, answer: HttpAnswer, verdict: Verdict, request: _Request) -> TransientFault | None:
        """An answer that means to ask again, as a fault; None when it is final."""
        if verdict is Verdict.RETRY_BRIEFLY:
            request.brief_attempts += 1
            if request.brief_attempts >= BRIEF_ATTEMPTS_MAX:
                return None
        elif verdict is not Verdict.RETRY:
            return None
        wait_s = retry_after_s(answer.headers.get("retry-after"), time.time())
        why = explain(answer, decode_error(answer.body))
        # 429 and 507 come from a server that works: its circuit stays closed.
        alive = answer.status == 429 or verdict is Verdict.RETRY_BRIEFLY
        return TransientFault(why, retry_after_s=wait_s, alive=alive)

    def _judged(self, request: _Request, answer: HttpAnswer, verdict: Verdict) -> HttpAnswer:
        if verdict is Verdict.ANSWERED:
            return answer
        why = explain(answer, decode_error(answer.body))
        if verdict is Verdict.REFUSED_WHOLE:
            raise EndpointRefusedError(request.call.url, why, status=answer.status)
        refusal = RowsRefusedError(request.call.url, why, status=answer.status)
        refusal.attempts = request.attempts
        raise refusal

    def _report(self, fault: TransientFault | None, *, probe: bool) -> None:
        """Tell the circuit, log what it makes of it, and wake who waits for it."""
        before = self._circuit.state
        if fault is None or fault.alive:
            self._circuit.succeeded()
        else:
            self._circuit.failed(self._clock.now(), str(fault), probe=probe)
        after = self._circuit.state
        if after.failures == 1:
            _log.warning("endpoint failed, retrying: %s", fault)
        if after.phase == before.phase:
            return
        if after.phase == "closed":
            _log.warning("endpoint answers again after %d failures", before.failures)
        elif after.opened > before.opened:
            _log.warning("circuit open after %d failures in a row: %s", after.failures, fault)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait_for_change(self, seconds: float) -> None:
        """Until the circuit changes, but not longer than `seconds`."""
        changed = asyncio.ensure_future(self._changed.wait())
        slept = asyncio.ensure_future(self._sleep(seconds))
        try:
            await asyncio.wait((changed, slept), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Not awaited: a cancellation that came meanwhile could not be told from theirs.
            changed.cancel()
            slept.cancel()

    def _unavailable(self, request: _Request) -> EndpointUnavailableError:
        state, now_s = self._circuit.state, self._clock.now()
        trouble_at_s = now_s if request.trouble_at_s is None else request.trouble_at_s
        since_s = min(trouble_at_s, now_s if state.since_s is None else state.since_s)
        failing_s = now_s - since_s
        when = datetime.now(UTC) - timedelta(seconds=failing_s)
        tried = "1 attempt" if request.attempts == 1 else f"{request.attempts} attempts"
        circuit = "" if state.phase == "closed" else "; its circuit is open"
        return EndpointUnavailableError(
            request.call.url,
            f"no answer for {failing_s:.1f} s, since {when:%Y-%m-%d %H:%M:%S} UTC ({tried} of this request"
            f"{circuit}). Last error: {state.last_error or 'none'}. Is the endpoint up and the URL right?",
        )

    def _begin(self) -> None:
        now_s = self._clock.now()
        if self._first_s is None:
            self._first_s = now_s
        if self._under_way == 0:
            self._busy_from_s = now_s
        self._under_way += 1

    def _end(self) -> None:
        self._under_way -= 1
        if self._under_way == 0:
            self._busy_s += self._clock.now() - self._busy_from_s
