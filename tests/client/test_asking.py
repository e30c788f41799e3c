"""Asking until answered: what is repeated, for how long, and what it ends with."""

import asyncio
import logging

import pytest

from client.support import ScriptedConnection, asker_over, run, status
from headrace.client.asking import RowsRefusedError
from headrace.client.connection import HttpCall
from headrace.client.retry import TransientFault
from headrace.core.errors import EndpointError, EndpointRefusedError, EndpointUnavailableError

CALL = HttpCall("POST", "http://host/infer", b"body")
LOST = TransientFault("connection lost")


def ask(asker, **more):
    return run(asker.ask(CALL, **more))


def test_an_answer_is_given_as_it_came():
    connection = ScriptedConnection(status(200, b"ok"))
    asker = asker_over(connection)
    assert ask(asker).body == b"ok"
    assert (asker.calls, asker.retries) == (1, 0)


@pytest.mark.parametrize("trouble", [status(429), status(502), status(503), status(504), LOST])
def test_what_may_pass_is_asked_again(trouble):
    connection = ScriptedConnection(trouble, trouble, status(200))
    asker = asker_over(connection)
    assert ask(asker).status == 200
    assert (asker.calls, asker.retries) == (3, 2)
    assert connection.calls == [CALL] * 3


@pytest.mark.parametrize("code", [400, 413, 422, 500])
def test_a_refusal_that_may_be_about_rows_is_never_repeated(code):
    connection = ScriptedConnection(status(code, b'{"error":"negative age"}'))
    with pytest.raises(RowsRefusedError, match=f"HTTP {code}: negative age") as caught:
        ask(asker_over(connection))
    assert (caught.value.status, caught.value.attempts, len(connection.calls)) == (code, 1, 1)


@pytest.mark.parametrize("code", [401, 403, 404, 405])
def test_a_refusal_of_everything_is_another_error(code):
    connection = ScriptedConnection(status(code))
    with pytest.raises(EndpointRefusedError) as caught:
        ask(asker_over(connection))
    assert not isinstance(caught.value, RowsRefusedError)
    assert len(connection.calls) == 1


def test_retry_after_is_waited_at_least():
    connection = ScriptedConnection(status(503, retry_after="3"), status(200))
    ask(asker_over(connection))
    assert connection.asked_s == [0.0, 3.0]


def test_delays_grow_and_the_last_attempt_is_at_the_end_of_the_budget():
    connection = ScriptedConnection(LOST)
    with pytest.raises(EndpointUnavailableError):
        ask(asker_over(connection, retry_s=10.0))
    first, second = connection.asked_s[1], connection.asked_s[2] - connection.asked_s[1]
    assert 0.05 <= first <= 0.1 <= second <= 0.2
    assert connection.asked_s[-1] == pytest.approx(10.0)
    assert len(connection.asked_s) < 12


def test_the_budget_bounds_all_waiting_and_its_end_names_the_trouble():
    asker = asker_over(ScriptedConnection(status(503, b"overloaded")), retry_s=10.0)
    with pytest.raises(EndpointUnavailableError, match=r"no answer for 10\.0 s, .*HTTP 503: overloaded") as e:
        ask(asker)
    assert "http://host/infer" in str(e.value)


def test_the_budget_begins_with_the_first_trouble_not_with_the_request():
    connection = ScriptedConnection(LOST, LOST, status(200), attempt_s=8.0)
    assert ask(asker_over(connection, retry_s=10.0)).status == 200
    assert connection.asked_s[-1] > 16


def test_no_budget_asks_once():
    connection = ScriptedConnection(LOST)
    with pytest.raises(EndpointUnavailableError, match="1 attempt"):
        ask(asker_over(connection), retry_s=0.0)
    assert len(connection.calls) == 1


def test_out_of_memory_is_tried_briefly_and_then_is_the_rows_fault():
    connection = ScriptedConnection(status(507))
    with pytest.raises(RowsRefusedError) as caught:
        ask(asker_over(connection))
    assert (len(connection.calls), caught.value.attempts) == (3, 3)


def test_what_no_retry_cures_is_raised_at_once():
    with pytest.raises(EndpointError, match="no trusted TLS"):
        ask(asker_over(ScriptedConnection(EndpointError("u", "no trusted TLS connection"))))


def test_no_more_attempts_at_once_than_allowed():
    connection = ScriptedConnection(status(200))
    asker = asker_over(connection, attempts_max=3)

    async def many():
        await asyncio.gather(*(asker.ask(CALL) for _ in range(20)))

    run(many())
    assert connection.under_way_peak == 3
    assert asker.calls == 20


def test_an_endpoint_that_is_down_is_probed_by_one_at_a_time():
    """16 requests against a dead endpoint: once the circuit is open, attempts are single probes."""
    connection = ScriptedConnection(LOST)
    asker = asker_over(connection, attempts_max=16, failures_max=16, retry_s=60.0)

    async def many():
        return await asyncio.gather(*(asker.ask(CALL) for _ in range(16)), return_exceptions=True)

    errors = run(many())
    assert {type(e) for e in errors} == {EndpointUnavailableError}
    assert any("its circuit is open" in str(e) for e in errors)
    # 16 open it; then probes at 1, 2, 4, 8, 15, 15... seconds, and what was under way with the first of them.
    assert 16 < len(connection.calls) < 40


def test_all_go_on_when_a_probe_is_answered():
    connection = ScriptedConnection(*[LOST] * 20, status(200))
    asker = asker_over(connection, attempts_max=8, failures_max=8, retry_s=600.0)

    async def many():
        return await asyncio.gather(*(asker.ask(CALL) for _ in range(8)))

    assert {a.status for a in run(many())} == {200}
    assert asker.state.phase == "closed"


def test_a_cancelled_probe_leaves_its_place():
    async def scenario():
        hanging = asyncio.Event()

        class Hangs(ScriptedConnection):
            async def send(self, call, timeout_s):
                if len(self.calls) == 1 and not hanging.is_set():
                    hanging.set()
                    await asyncio.Event().wait()
                return await super().send(call, timeout_s)

        connection = Hangs(LOST, status(200))
        asker = asker_over(connection, failures_max=1, retry_s=60.0)
        probe = asyncio.ensure_future(asker.ask(CALL))
        await hanging.wait()
        assert asker.state.phase == "probing"
        probe.cancel()
        await asyncio.wait((probe,))
        assert asker.state.phase == "open"
        assert (await asker.ask(CALL)).status == 200

    run(scenario())


def test_a_cancellation_while_it_stops_waiting_is_not_lost():
    async def scenario():
        asker = asker_over(ScriptedConnection(LOST))
        for rounds in range(1, 8):
            waiting = asyncio.ensure_future(asker._wait_for_change(1e6))
            await asyncio.sleep(0)
            asker._notify()
            for _ in range(rounds):
                await asyncio.sleep(0)
            if waiting.cancel():
                await asyncio.wait((waiting,))
                assert waiting.cancelled(), f"lost after {rounds} rounds"

    run(scenario())


def test_429_and_507_do_not_open_the_circuit():
    asker = asker_over(ScriptedConnection(*[status(429)] * 10, status(200)), failures_max=2, retry_s=1e3)
    ask(asker)
    assert asker.state.opened == 0


def test_trouble_and_recovery_are_logged_once_each(caplog):
    connection = ScriptedConnection(*[LOST] * 5, status(200))
    with caplog.at_level(logging.WARNING, "headrace.client"):
        ask(asker_over(connection, failures_max=3, retry_s=600.0))
    said = [r.getMessage() for r in caplog.records]
    assert [s.split(" after")[0] for s in said] == [
        "endpoint failed, retrying: connection lost",
        "circuit open",
        "endpoint answers again",
    ]


def test_busy_time_is_that_of_attempts():
    async def scenario():
        asker = asker_over(ScriptedConnection(status(200), attempt_s=2.0))
        assert asker.busy_s() == (0.0, 0.0)
        await asyncio.gather(asker.ask(CALL), asker.ask(CALL))
        await asyncio.sleep(3.0)
        assert asker.busy_s() == pytest.approx((2.0, 3.0))

    run(scenario())
