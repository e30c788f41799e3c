"""Faults 7 and 8: the broker forgets all announcements, or repeats and shuffles them."""

import random

import pytest

import levels
from faults.bench import Bench, one_ledger
from headrace.jobs.brokers import open_wakeup_broker
from servers.polling import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), one_ledger()]

ROUNDS = levels.by_level(2, 2, 20)


@pytest.fixture
def broker(valkey_server):
    """A client of the real broker, and its URL."""
    url = f"{valkey_server.url}/7"
    dispatcher = open_wakeup_broker(url)
    dispatcher.start()
    yield dispatcher, url
    dispatcher.stop()


def _ids(bench: Bench, numbers: list[int]) -> list[str]:
    return [bench.ids[number] for number in numbers]


def test_fault_07_broker_forgets_everything(bench, broker, valkey_server):
    """Fault 7: after FLUSHALL, and after a restart without persistence, all jobs run: the ledger has them."""
    dispatcher, url = broker
    workers = bench.start_workers(2, dispatcher=url)
    for restart in (False, True):
        numbers = bench.submit(30, work_ms=50)
        dispatcher.announce("default", _ids(bench, numbers))
        wait_until(lambda numbers=numbers: bench.ended(numbers) > 5, "the end of five jobs")
        if restart:
            valkey_server.stop()
        else:
            with valkey_server.client() as client:
                client.flushall()
        bench.fault_happens()
        more = bench.submit(10, work_ms=20)
        dispatcher.announce("default", _ids(bench, more))
        if restart:
            bench.wait_ended(numbers)  # without any broker
            valkey_server.start()
        bench.wait_ended()
    assert all(worker.running for worker in workers)
    bench.check_single_executions()
    assert [worker.terminate() for worker in workers] == [0, 0]


def test_fault_08_broker_repeats_and_shuffles(bench, broker):
    """Fault 8: repeated, shuffled and unknown announcements cause one execution per job."""
    dispatcher, url = broker
    bench.start_workers(2, dispatcher=url)
    choice = random.Random(8)
    for _ in range(ROUNDS):
        numbers = bench.submit(20, work_ms=20)
        announced = _ids(bench, numbers) * 5 + ["00000000-0000-7000-8000-000000000000"] * 10
        choice.shuffle(announced)
        dispatcher.announce("default", announced)
    bench.wait_ended()
    # Announcements of jobs that have ended change nothing.
    dispatcher.announce("default", list(bench.ids.values()))
    after = bench.submit(5)
    bench.wait_ended(after)
    bench.check_single_executions()
