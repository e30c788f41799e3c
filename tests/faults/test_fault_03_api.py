"""Faults 3 and 4: the API is killed at the two worst moments of a submission."""

import threading

import httpx
import pytest

from faults.bench import MODEL, Bench, one_ledger, until
from headrace.jobs.dispatchers.open import open_dispatcher
from headrace.jobs.maintenance.reconciler import Reconciler
from servers.tcp_proxy import TcpProxy, Way

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def _submit(url: str, number: int, key: str) -> httpx.Response:
    return httpx.post(
        f"{url}/v1/jobs",
        params={"model": MODEL},
        content=Bench.body(number),
        headers={"Content-Type": "application/json", "Idempotency-Key": key},
        timeout=60,
    )


def _try(url: str, number: int, key: str) -> None:
    with pytest.raises(httpx.HTTPError):
        _submit(url, number, key)


@one_ledger()
def test_fault_03_api_killed_after_the_commit_and_before_its_answer(bench):
    """Fault 3: who asks again with the same key gets the job that is there."""
    api = bench.api()
    with TcpProxy(api.port) as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        proxy.hold(Way.DOWN)
        asking = [threading.Thread(target=_try, args=(url, number, f"key-{number}")) for number in range(4)]
        for thread in asking:
            thread.start()
        until(lambda: bench.ledger.counts("default").due == 4, what="four commits")
        bench.wreck()
        api.kill()
        proxy.reset()
        for thread in asking:
            thread.join()
        proxy.heal()
        again = bench.api(port=api.port)
        for number in range(4):
            first, second = (_submit(url, number, f"key-{number}") for _ in range(2))
            assert first.status_code in (200, 202), first.text
            assert first.json()["id"] == second.json()["id"]
            bench.posted(first.json(), number)
    assert bench.ledger.counts("default").due == 4
    bench.worker().wait_ready()
    bench.wait_ended()
    again.kill()
    assert bench.tally().duplicate_executions == 0


def test_fault_04_api_killed_between_the_commit_and_the_broker(postgres_bench, valkey_server):
    """Fault 4: what the broker was never told is announced again, and done."""
    url = f"{valkey_server.url}/4"
    api = postgres_bench.api(dispatcher=url)
    assert _submit(api.url, 0, "first").status_code == 202
    valkey_server.pause()
    try:
        told = _submit(api.url, 1, "second")
        assert told.status_code == 202, "the ledger has it, so it is taken"
        postgres_bench.wreck()
        api.kill()
    finally:
        valkey_server.go_on()
    postgres_bench.posted(_submit(postgres_bench.api().url, 0, "first").json(), 0)
    postgres_bench.posted(told.json(), 1)

    dispatcher = open_dispatcher(url)
    dispatcher.start()
    try:
        listener = dispatcher.listener(["default"])
        # What was told before, and may have been told since, is taken first.
        until(lambda: not listener.wait(0.3))
        announced = Reconciler(postgres_bench.ledger, dispatcher.announce, patience_s=0.1).tick()
        assert announced == 2
        until(lambda: listener.wait(1), what="a message for what was never announced")
        listener.close()
    finally:
        dispatcher.stop()
    postgres_bench.worker(dispatcher=url).wait_ready()
    postgres_bench.wait_ended()
    assert postgres_bench.tally().duplicate_executions == 0
