"""Counters that several threads update."""

from concurrent.futures import ThreadPoolExecutor

from headrace.jobs.brokers import WakeupBrokerStatistics
from headrace.jobs.brokers.session import BrokerCounters


def test_counts_of_many_threads_add_up():
    counters = BrokerCounters()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: counters.add(taken=2, wakes=1), range(2000)))
    statistics = counters.snapshot(unsent=3)
    assert (statistics.taken, statistics.wakes, statistics.unsent) == (4000, 2000, 3)


def test_outage_is_counted_once_and_ends_once():
    counters = BrokerCounters()
    counters.outage_began("refused")
    assert counters.snapshot(unsent=0) == WakeupBrokerStatistics(outages=1, away=1, last_error="refused")
    counters.error("refused again")
    counters.add(away=-1)
    assert counters.snapshot(unsent=0) == WakeupBrokerStatistics(
        outages=1, away=0, last_error="refused again"
    )
