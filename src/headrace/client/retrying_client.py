"""Send a request until an endpoint responds: attempts, delays, the circuit breaker and the budget.

The input is a request and the classification of its response. The result is a 2xx response, or an
error that names its cause. Everything here runs in one event loop.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from headrace.client.connection_pool import HttpConnectionPool, HttpRequest
from headrace.client.retry import (
    BRIEF_ATTEMPTS_MAX,
    CircuitBreaker,
    CircuitState,
    HttpResponse,
    ResponseKind,
    classify_response,
    describe_refusal,
)
from headrace.core.clock import Clock, RetryPolicy, TransientFault, retry_after_s
from headrace.core.errors import EndpointRefusedError, EndpointUnavailableError
from headrace.protocols.oip_documents import decode_error

_log = logging.getLogger("headrace.client")

Sleep = Callable[[float], Awaitable[None]]
ResponseClassifier = Callable[[HttpResponse], ResponseKind]


class RowsRefusedError(EndpointRefusedError):
    """A refusal that may concern only some of the rows.

    It does not leave this package while the rows can be bisected.
    """

    attempts: int = 1
    """Attempts up to the final refusal."""


class _RequestState:
    """The attempts of one request. Its budget begins at the first failure."""

    def __init__(self, request: HttpRequest, retry_s: float) -> None:
        self.request = request
        self.retry_s = retry_s
        self.attempts = 0
        self.brief_attempts = 0
        self.first_failure_s: float | None = None

    def remaining_s(self, now_s: float) -> float:
        """Return the rest of the budget. The first call starts the budget."""
        if self.first_failure_s is None:
            self.first_failure_s = now_s
        return self.retry_s - (now_s - self.first_failure_s)


class RetryingClient:
    """A client that repeats transient failures. At most `attempts_max` attempts run at once.

    Only one attempt runs at a time while the circuit is not closed. `calls`, `retries`, `busy_s()`
    and `state` may be read from any thread.
    """

    def __init__(
        self,
        pool: HttpConnectionPool,
        circuit: CircuitBreaker,
        *,
        policy: RetryPolicy,
        timeout_s: float,
        attempts_max: int,
        clock: Clock,
        sleep: Sleep = asyncio.sleep,
        seed: int | None = None,
    ) -> None:
        self._pool = pool
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
        self._in_flight = 0
        self._busy_s = 0.0
        self._busy_from_s = 0.0
        self._first_s: float | None = None

    @property
    def state(self) -> CircuitState:
        """The state of the circuit breaker."""
        return self._circuit.state

    def busy_s(self) -> tuple[float, float]:
        """Return the seconds with and without an attempt in flight, since the first attempt."""
        if self._first_s is None:
            return 0.0, 0.0
        now_s = self._clock.now()
        busy_s = self._busy_s + (now_s - self._busy_from_s if self._in_flight else 0.0)
        return busy_s, max(0.0, now_s - self._first_s - busy_s)

    async def request(
        self,
        request: HttpRequest,
        classify: ResponseClassifier = classify_response,
        *,
        retry_s: float | None = None,
    ) -> HttpResponse:
        """Return a 2xx response.

        Raises:
            RowsRefusedError: The endpoint refused; perhaps only some rows are the cause.
            EndpointRefusedError: The endpoint refused; no request like this one can succeed.
            EndpointUnavailableError: No response within `retry_s` seconds of the first failure.
                None stands for the time of the policy.
        """
        state = _RequestState(request, self._policy.retry_s if retry_s is None else retry_s)
        while True:
            async with self._slots:
                # No await between admission and attempt, so that exactly the admitted attempt runs.
                admission = self._circuit.admit(self._clock.now())
                outcome = (
                    await self._attempt(state, classify, probe=admission.probe) if admission.allowed else None
                )
            if isinstance(outcome, HttpResponse):
                return outcome
            remaining_s = state.remaining_s(self._clock.now())
            if outcome is None:
                if remaining_s <= 0:
                    raise self._unavailable_error(state)
                await self._wait_for_circuit_change(min(remaining_s, admission.wait_s or remaining_s))
                continue
            delay_s = self._policy.delay_s(
                state.attempts, remaining_s, self._random.random(), retry_after_s=outcome.retry_after_s
            )
            if delay_s is None:
                raise self._unavailable_error(state) from outcome
            _log.debug("%s: retrying in %.2f s: %s", request.url, delay_s, outcome)
            self.retries += 1
            await self._sleep(delay_s)

    async def _attempt(
        self, state: _RequestState, classify: ResponseClassifier, *, probe: bool
    ) -> HttpResponse | TransientFault:
        """Make one attempt and report its result to the circuit breaker."""
        self.calls += 1
        state.attempts += 1
        self._record_start()
        reported = False
        try:
            response = await self._pool.send(state.request, self._timeout_s)
            kind = classify(response)
            fault = self._transient_fault(response, kind, state)
            self._report(fault, probe=probe)
            reported = True
        except TransientFault as fault:
            self._report(fault, probe=probe)
            reported = True
            return fault
        finally:
            self._record_end()
            if probe and not reported:
                self._circuit.release_probe()
                self._notify()
        if fault is not None:
            return fault
        return self._require_success(state, response, kind)

    def _transient_fault(
        self, response: HttpResponse, kind: ResponseKind, state: _RequestState
    ) -> TransientFault | None:
        """Return a response that requires a retry as a fault, or None if the response is final."""
        if kind is ResponseKind.RETRY_BRIEFLY:
            state.brief_attempts += 1
            if state.brief_attempts >= BRIEF_ATTEMPTS_MAX:
                return None
        elif kind is not ResponseKind.RETRY:
            return None
        wait_s = retry_after_s(response.headers.get("retry-after"), time.time())
        why = describe_refusal(response, decode_error(response.body))
        # 429 and 507 come from a server that works, so the circuit stays closed.
        alive = response.status == 429 or kind is ResponseKind.RETRY_BRIEFLY
        return TransientFault(why, retry_after_s=wait_s, alive=alive)

    def _require_success(
        self, state: _RequestState, response: HttpResponse, kind: ResponseKind
    ) -> HttpResponse:
        if kind is ResponseKind.SUCCESS:
            return response
        why = describe_refusal(response, decode_error(response.body))
        if kind is ResponseKind.REQUEST_REFUSED:
            raise EndpointRefusedError(state.request.url, why, status=response.status)
        refusal = RowsRefusedError(state.request.url, why, status=response.status)
        refusal.attempts = state.attempts
        raise refusal

    def _report(self, fault: TransientFault | None, *, probe: bool) -> None:
        """Update the circuit breaker, log a change of phase and wake the waiting requests."""
        before = self._circuit.state
        if fault is None or fault.alive:
            self._circuit.record_success()
        else:
            self._circuit.record_failure(self._clock.now(), str(fault), probe=probe)
        after = self._circuit.state
        if after.failures == 1:
            _log.warning("endpoint failed, retrying: %s", fault)
        if after.phase == before.phase:
            return
        if after.phase == "closed":
            _log.warning("endpoint responds again after %d failures", before.failures)
        elif after.opened > before.opened:
            _log.warning("circuit open after %d failures in a row: %s", after.failures, fault)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait_for_circuit_change(self, seconds: float) -> None:
        """Wait until the circuit changes, for `seconds` at most."""
        changed = asyncio.ensure_future(self._changed.wait())
        slept = asyncio.ensure_future(self._sleep(seconds))
        try:
            await asyncio.wait((changed, slept), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # The tasks are not awaited: a cancellation of this coroutine could not be told from
            # theirs.
            changed.cancel()
            slept.cancel()

    def _unavailable_error(self, state: _RequestState) -> EndpointUnavailableError:
        circuit, now_s = self._circuit.state, self._clock.now()
        first_failure_s = now_s if state.first_failure_s is None else state.first_failure_s
        since_s = min(first_failure_s, now_s if circuit.since_s is None else circuit.since_s)
        failing_s = now_s - since_s
        when = datetime.now(UTC) - timedelta(seconds=failing_s)
        tried = "1 attempt" if state.attempts == 1 else f"{state.attempts} attempts"
        circuit_note = "" if circuit.phase == "closed" else "; its circuit is open"
        return EndpointUnavailableError(
            state.request.url,
            f"no response for {failing_s:.1f} s, since {when:%Y-%m-%d %H:%M:%S} UTC "
            f"({tried} of this request{circuit_note}). Last error: {circuit.last_error or 'none'}. "
            "Is the endpoint up and the URL right?",
        )

    def _record_start(self) -> None:
        now_s = self._clock.now()
        if self._first_s is None:
            self._first_s = now_s
        if self._in_flight == 0:
            self._busy_from_s = now_s
        self._in_flight += 1

    def _record_end(self) -> None:
        self._in_flight -= 1
        if self._in_flight == 0:
            self._busy_s += self._clock.now() - self._busy_from_s
