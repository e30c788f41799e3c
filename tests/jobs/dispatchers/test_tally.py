"""Counts of several threads."""

from concurrent.futures import ThreadPoolExecutor

from headrace.jobs.dispatcher import DispatcherStatistics
from headrace.jobs.dispatchers.tally import Tally


def test_counts_of_many_threads_add_up():
    tally = Tally()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: tally.add(taken=2, wakes=1), range(2000)))
    told = tally.snapshot(unsent=3)
    assert (told.taken, told.wakes, told.unsent) == (4000, 2000, 3)


def test_an_outage_is_counted_once_and_is_over_once():
    tally = Tally()
    tally.gone("refused")
    assert tally.snapshot(unsent=0) == DispatcherStatistics(outages=1, away=1, last_error="refused")
    tally.error("refused again")
    tally.back()
    assert tally.snapshot(unsent=0) == DispatcherStatistics(outages=1, away=0, last_error="refused again")
