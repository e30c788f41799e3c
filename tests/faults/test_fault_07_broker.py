"""Faults 7 and 8: the broker forgets all it was told, and tells things twice and in disorder."""

import random

import pytest

from faults.bench import Bench, one_ledger, until
from headrace.jobs.dispatchers.open import open_dispatcher

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), one_ledger()]


@pytest.fixture
def announce(valkey_server):
    """A dispatcher over the real server, and where it is."""
    url = f"{valkey_server.url}/7"
    dispatcher = open_dispatcher(url)
    dispatcher.start()
    yield dispatcher, url
    dispatcher.stop()


def _ids(bench: Bench, numbers: list[int]) -> list[str]:
    return [bench.ids[number] for number in numbers]


@pytest.mark.parametrize("how", ["restart", "flush"])
def test_fault_07_broker_forgets_everything(bench, announce, valkey_server, how):
    """Fault 7: FLUSHALL, or a restart without persistence: the ledger knows, and all jobs run."""
    dispatcher, url = announce
    workers = bench.fleet(2, dispatcher=url)
    numbers = bench.submit(60, work_ms=50)
    dispatcher.announce("default", _ids(bench, numbers))
    until(lambda: sum(job.state.ended for job in bench.jobs(numbers).values()) > 5)
    if how == "flush":
        with valkey_server.client() as client:
            client.flushall()
    else:
        valkey_server.stop()
    bench.wreck()
    more = bench.submit(20, work_ms=20)
    dispatcher.announce("default", _ids(bench, more))
    if how == "restart":
        bench.wait_ended(numbers)  # also without any broker at all
        valkey_server.start()
    bench.wait_ended()
    assert all(worker.running for worker in workers)
    assert bench.tally().duplicate_executions == 0
    assert [worker.end() for worker in workers] == [0, 0]


def test_fault_08_broker_tells_twice_and_in_disorder(bench, announce):
    """Fault 8: five messages for each job, shuffled, and some for jobs that there never were: one execution each."""
    dispatcher, url = announce
    bench.fleet(3, dispatcher=url)
    choice = random.Random(8)
    for _ in range(3):
        numbers = bench.submit(20, work_ms=20)
        told = _ids(bench, numbers) * 5 + ["00000000-0000-7000-8000-000000000000"] * 10
        choice.shuffle(told)
        dispatcher.announce("default", told)
    bench.wait_ended()
    # What has ended is told once more: nobody takes it.
    dispatcher.announce("default", list(bench.ids.values()))
    after = bench.submit(5)
    bench.wait_ended(after)
    assert bench.tally().duplicate_executions == 0
