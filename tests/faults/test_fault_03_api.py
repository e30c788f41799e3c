"""Faults 3 and 4: the API is killed at the two worst moments of a submission."""

import threading

import httpx
import pytest

from faults.bench import MODEL, Bench, one_ledger
from headrace.jobs.brokers import open_wakeup_broker
from headrace.jobs.maintenance import Reconciler
from servers.polling import wait_until
from servers.tcp_proxy import TcpProxy, Way

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SUBMISSIONS = 4


def _submit(url: str, number: int, key: str) -> httpx.Response:
    return httpx.post(
        f"{url}/v1/jobs",
        params={"model": MODEL},
        content=Bench.payload(number),
        headers={"Content-Type": "application/json", "Idempotency-Key": key},
        timeout=60,
    )


def _submit_without_response(url: str, number: int, key: str) -> None:
    with pytest.raises(httpx.HTTPError):
        _submit(url, number, key)


@one_ledger()
def test_fault_03_api_killed_after_the_commit_and_before_its_response(bench):
    """Fault 3: a retry with the same idempotency key returns the existing job."""
    api = bench.api()
    with TcpProxy(api.port) as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        proxy.hold(Way.DOWN)
        threads = [
            threading.Thread(target=_submit_without_response, args=(url, number, f"key-{number}"))
            for number in range(SUBMISSIONS)
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: bench.ledger.counts("default").due == SUBMISSIONS, "the commit of all submissions")
        bench.fault_happens()
        api.kill()
        proxy.reset()
        for thread in threads:
            thread.join()
        proxy.heal()
        second_api = bench.api(port=api.port)
        for number in range(SUBMISSIONS):
            first, second = (_submit(url, number, f"key-{number}") for _ in range(2))
            assert first.status_code in (200, 202), first.text
            assert first.json()["id"] == second.json()["id"]
            bench.add_job(first.json()["id"], number)
    assert bench.ledger.counts("default").due == SUBMISSIONS
    bench.worker().wait_ready()
    bench.wait_ended()
    second_api.kill()
    bench.check_single_executions()


def test_fault_04_api_killed_between_the_commit_and_the_broker(postgres_bench, valkey_server):
    """Fault 4: a job whose announcement was lost is announced again and completes."""
    url = f"{valkey_server.url}/4"
    api = postgres_bench.api(dispatcher=url)
    assert _submit(api.url, 0, "first").status_code == 202
    valkey_server.pause()
    try:
        submitted = _submit(api.url, 1, "second")
        assert submitted.status_code == 202, "the ledger has accepted the job"
        postgres_bench.fault_happens()
        api.kill()
    finally:
        valkey_server.resume()
    postgres_bench.add_job(_submit(postgres_bench.api().url, 0, "first").json()["id"], 0)
    postgres_bench.add_job(submitted.json()["id"], 1)

    dispatcher = open_wakeup_broker(url)
    dispatcher.start()
    try:
        listener = dispatcher.listener(["default"])
        # Announcements of before and during the fault are taken first.
        wait_until(lambda: not listener.wait(0.3), "the end of the earlier announcements")
        announced = Reconciler(postgres_bench.ledger, dispatcher.announce, overdue_s=0.1).tick()
        assert announced == 2
        wait_until(lambda: listener.wait(1), "the announcement of the reconciler")
        listener.close()
    finally:
        dispatcher.stop()
    postgres_bench.worker(dispatcher=url).wait_ready()
    postgres_bench.wait_ended()
    postgres_bench.check_single_executions()
