"""Retries: repeated failures, delays, budgets and final errors."""

import asyncio
import logging

import pytest

from cases import for_each
from client.support import ScriptedPool, client_over, run, status
from headrace.client.connection_pool import HttpRequest
from headrace.client.retrying_client import RowsRefusedError
from headrace.core.clock import TransientFault
from headrace.core.errors import EndpointError, EndpointRefusedError, EndpointUnavailableError

REQUEST = HttpRequest("POST", "http://host/infer", b"body")
LOST = TransientFault("connection lost")


def send(client, **more):
    return run(client.request(REQUEST, **more))


def test_response_is_returned_unchanged():
    pool = ScriptedPool(status(200, b"ok"))
    client = client_over(pool)
    assert send(client).body == b"ok"
    assert (client.calls, client.retries) == (1, 0)


@for_each("failure", [status(429), status(502), status(503), status(504), LOST])
def test_transient_failure_is_retried(failure):
    pool = ScriptedPool(failure, failure, status(200))
    client = client_over(pool)
    assert send(client).status == 200
    assert (client.calls, client.retries) == (3, 2)
    assert pool.requests == [REQUEST] * 3


@for_each("code", [400, 413, 422, 500])
def test_row_refusal_is_never_retried(code):
    pool = ScriptedPool(status(code, b'{"error":"negative age"}'))
    with pytest.raises(RowsRefusedError, match=f"HTTP {code}: negative age") as caught:
        send(client_over(pool))
    assert (caught.value.status, caught.value.attempts, len(pool.requests)) == (code, 1, 1)


@for_each("code", [401, 403, 404, 405])
def test_request_refusal_is_not_a_rows_refused_error(code):
    pool = ScriptedPool(status(code))
    with pytest.raises(EndpointRefusedError) as caught:
        send(client_over(pool))
    assert not isinstance(caught.value, RowsRefusedError)
    assert len(pool.requests) == 1


def test_retry_after_is_the_minimum_delay():
    pool = ScriptedPool(status(503, retry_after="3"), status(200))
    send(client_over(pool))
    assert pool.sent_s == [0.0, 3.0]


def test_delays_grow_and_last_attempt_is_at_the_end_of_the_budget():
    pool = ScriptedPool(LOST)
    with pytest.raises(EndpointUnavailableError):
        send(client_over(pool, retry_s=10.0))
    first, second = pool.sent_s[1], pool.sent_s[2] - pool.sent_s[1]
    assert 0.05 <= first <= 0.1 <= second <= 0.2
    assert pool.sent_s[-1] == pytest.approx(10.0)
    assert len(pool.sent_s) < 12


def test_spent_budget_error_names_duration_and_last_failure():
    client = client_over(ScriptedPool(status(503, b"overloaded")), retry_s=10.0)
    with pytest.raises(
        EndpointUnavailableError, match=r"no response for 10\.0 s, .*HTTP 503: overloaded"
    ) as e:
        send(client)
    assert "http://host/infer" in str(e.value)


def test_budget_begins_at_the_first_failure():
    pool = ScriptedPool(LOST, LOST, status(200), attempt_s=8.0)
    assert send(client_over(pool, retry_s=10.0)).status == 200
    assert pool.sent_s[-1] > 16


def test_zero_budget_makes_one_attempt():
    pool = ScriptedPool(LOST)
    with pytest.raises(EndpointUnavailableError, match="1 attempt"):
        send(client_over(pool), retry_s=0.0)
    assert len(pool.requests) == 1


def test_status_507_is_retried_briefly_then_refuses_the_rows():
    pool = ScriptedPool(status(507))
    with pytest.raises(RowsRefusedError) as caught:
        send(client_over(pool))
    assert (len(pool.requests), caught.value.attempts) == (3, 3)


def test_permanent_error_is_raised_at_once():
    with pytest.raises(EndpointError, match="no trusted TLS"):
        send(client_over(ScriptedPool(EndpointError("u", "no trusted TLS connection"))))


def test_concurrent_attempts_are_limited():
    pool = ScriptedPool(status(200))
    client = client_over(pool, attempts_max=3)

    async def many():
        await asyncio.gather(*(client.request(REQUEST) for _ in range(20)))

    run(many())
    assert pool.in_flight_peak == 3
    assert client.calls == 20


def test_down_endpoint_is_probed_by_one_attempt_at_a_time():
    """Send 16 requests to a dead endpoint. Once the circuit is open, attempts are single probes."""
    pool = ScriptedPool(LOST)
    client = client_over(pool, attempts_max=16, failures_max=16, retry_s=60.0)

    async def many():
        return await asyncio.gather(*(client.request(REQUEST) for _ in range(16)), return_exceptions=True)

    errors = run(many())
    assert {type(e) for e in errors} == {EndpointUnavailableError}
    assert any("its circuit is open" in str(e) for e in errors)
    # 16 failures open it. Then probes at 1, 2, 4, 8, 15, 15... seconds, and attempts in flight with
    # the first.
    assert 16 < len(pool.requests) < 40


def test_successful_probe_releases_all_requests():
    pool = ScriptedPool(*[LOST] * 20, status(200))
    client = client_over(pool, attempts_max=8, failures_max=8, retry_s=600.0)

    async def many():
        return await asyncio.gather(*(client.request(REQUEST) for _ in range(8)))

    assert {a.status for a in run(many())} == {200}
    assert client.state.phase == "closed"


def test_cancelled_probe_allows_another_probe():
    async def scenario():
        hanging = asyncio.Event()

        class Hangs(ScriptedPool):
            async def send(self, request, timeout_s):
                if len(self.requests) == 1 and not hanging.is_set():
                    hanging.set()
                    await asyncio.Event().wait()
                return await super().send(request, timeout_s)

        pool = Hangs(LOST, status(200))
        client = client_over(pool, failures_max=1, retry_s=60.0)
        probe = asyncio.ensure_future(client.request(REQUEST))
        await hanging.wait()
        assert client.state.phase == "half_open"
        probe.cancel()
        await asyncio.wait((probe,))
        assert client.state.phase == "open"
        assert (await client.request(REQUEST)).status == 200

    run(scenario())


def test_cancellation_during_wakeup_is_not_lost():
    async def scenario():
        client = client_over(ScriptedPool(LOST))
        for rounds in range(1, 8):
            waiting = asyncio.ensure_future(client._wait_for_circuit_change(1e6))
            await asyncio.sleep(0)
            client._notify()
            for _ in range(rounds):
                await asyncio.sleep(0)
            if waiting.cancel():
                await asyncio.wait((waiting,))
                assert waiting.cancelled(), f"lost after {rounds} rounds"

    run(scenario())


def test_429_and_507_do_not_open_the_circuit():
    client = client_over(ScriptedPool(*[status(429)] * 10, status(200)), failures_max=2, retry_s=1e3)
    send(client)
    assert client.state.opened == 0


def test_failure_and_recovery_are_logged_once_each(caplog):
    pool = ScriptedPool(*[LOST] * 5, status(200))
    with caplog.at_level(logging.WARNING, "headrace.client"):
        send(client_over(pool, failures_max=3, retry_s=600.0))
    messages = [r.getMessage() for r in caplog.records]
    assert [s.split(" after")[0] for s in messages] == [
        "endpoint failed, retrying: connection lost",
        "circuit open",
        "endpoint responds again",
    ]


def test_busy_time_is_the_time_of_attempts():
    async def scenario():
        client = client_over(ScriptedPool(status(200), attempt_s=2.0))
        assert client.busy_s() == (0.0, 0.0)
        await asyncio.gather(client.request(REQUEST), client.request(REQUEST))
        await asyncio.sleep(3.0)
        assert client.busy_s() == pytest.approx((2.0, 3.0))

    run(scenario())
