"""The load and the workers of a pool, from the counts of a ledger and the records of workers."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.jobs.counters import CountedEvent, JobCount, JobGroup
from headrace.jobs.ledger import QueueCounts, QueueSettings
from headrace.scaling.actuator import Members
from headrace.scaling.observation import RATES_S, JobRates, living_workers, observe
from scaling.records import LEASE_MS, record

QUEUE = QueueSettings("default")


def observation(counts, own=(), others=(), *, starting=0, settings=QUEUE, slots=8, rates=None, drains=True):
    """Observe one queue. `counts` may be a list of pairs instead, for several queues."""
    queues = counts if isinstance(counts, list) else [(settings, counts)]
    return observe(
        1_000_000,
        queues,
        [*own, *others],
        Members(tuple(own), starting),
        rates or JobRates(["default"]),
        slots=slots,
        drains=drains,
    )


# Jobs


def test_load_of_a_pool_without_workers_is_that_of_its_queues():
    night = QueueSettings("night")
    seen = observation(
        [(QUEUE, QueueCounts(3, 9, 1, 2_500)), (night, QueueCounts(4, 9, 2, 61_250, blocked=7))]
    )
    assert (seen.due, seen.running, seen.oldest_s) == (7, 3, 61.25)
    assert (seen.at_ms, seen.current, seen.busy, seen.run_s) == (1_000_000, 0, 0, None)


def test_jobs_that_run_on_other_workers_are_not_the_load_of_the_pool():
    own = [record("own", running=2)]
    others = [record("other", running=3, slots=3)]
    seen = observation(QueueCounts(running=5), own, others)
    assert (seen.running, seen.busy) == (2, 1)


def test_jobs_of_lost_members_count_until_they_return():
    own = [record("own", running=2)]
    others = [record("other", running=3, slots=3)]
    assert observation(QueueCounts(running=9), own, others).running == 6


def test_jobs_of_members_count_although_they_are_not_in_the_counts_yet():
    own = [record("own", running=4), record("draining", running=2, drained_by="pool p")]
    others = [record("other", running=3)]
    assert observation(QueueCounts(running=0), own, others).running == 6


@for_each(
    ("others", "due", "oldest_s"),
    [
        ([], 5, 9.0),
        ([record("a", slots=2)], 3, 9.0),
        ([record("a", slots=2), record("b", slots=4, running=3)], 2, 9.0),
        ([record("a", slots=8)], 0, 0.0),
        ([record("a", slots=8, drained_by="ops")], 5, 9.0),
        ([record("a", slots=2, running=2)], 5, 9.0),
        ([record("a", slots=1, running=4), record("b", slots=2)], 3, 9.0),
    ],
)
def test_free_slots_of_other_workers_take_due_jobs(others, due, oldest_s):
    elsewhere = sum(each.running for each in others)
    seen = observation(QueueCounts(5, 0, elsewhere, 9_000), [record("own")], others)
    assert (seen.due, seen.oldest_s, seen.running) == (due, oldest_s, 0)


def test_free_slots_of_members_change_nothing():
    assert observation(QueueCounts(5), [record("own", slots=8)]).due == 5


def test_paused_queue_has_no_due_jobs_but_running_ones():
    paused = QueueSettings("default", paused=True)
    counts = QueueCounts(5, 0, 2, 9_000)
    seen = observation(counts, settings=paused)
    assert (seen.due, seen.running, seen.oldest_s) == (0, 2, 0.0)
    both = observation([(paused, counts), (QueueSettings("night"), QueueCounts(1, 0, 1, 1_000))])
    assert (both.due, both.running, both.oldest_s) == (1, 3, 1.0)


def test_draining_queue_has_due_jobs():
    assert observation(QueueCounts(5), settings=QueueSettings("default", draining=True)).due == 5


# Workers


def test_workers_are_counted_by_their_state():
    own = [
        record("idle"),
        record("busy", running=1),
        record("full", running=4),
        record("draining", running=3, drained_by="pool p"),
        record("drained", drained_by="ops", claims=False),
    ]
    seen = observation(QueueCounts(running=8), own, starting=2)
    assert (seen.workers, seen.starting, seen.draining, seen.busy) == (3, 2, 2, 2)
    assert (seen.current, seen.running) == (5, 8)


@for_each(
    ("own", "slots"),
    [([], 8), ([record("a", slots=3)], 3), ([record("a", slots=3), record("b", slots=6)], 6)],
)
def test_slots_are_those_that_members_report(own, slots):
    others = [record("other", slots=16)]
    assert observation(QueueCounts(), own, others, slots=8).slots == slots


@for_each("drains", [True, False])
def test_drains_are_those_of_the_actuator(drains):
    assert observation(QueueCounts(), drains=drains).drains is drains


def test_living_workers_of_the_queues_are_chosen():
    records = [
        record("own"),
        record("both", queues=("night", "default")),
        record("night", queues=("night",)),
        record("none", queues=()),
        record("last moment", seen_ago_ms=LEASE_MS),
        record("lost", seen_ago_ms=LEASE_MS + 1),
        record("stopped", stopped_at_ms=1),
        record("draining", drained_by="ops"),
        record("drained", drained_by="ops", claims=False),
    ]
    names = [each.info.name for each in living_workers(records, ["default", "other"])]
    assert names == ["own", "both", "last moment", "draining", "drained"]


worker_lists = st.lists(
    st.tuples(st.booleans(), st.integers(0, 5), st.integers(1, 5), st.booleans()), max_size=6
)


@given(worker_lists, st.integers(0, 30), st.integers(0, 40), st.integers(0, 2))
def test_figures_fit_together(workers, due, running, starting):
    records = [
        (own, record(f"w-{number}", running=jobs, slots=slots, drained_by="ops" if drains else None))
        for number, (own, jobs, slots, drains) in enumerate(workers)
    ]
    own = [each for is_own, each in records if is_own]
    others = [each for is_own, each in records if not is_own]
    seen = observation(QueueCounts(due, 0, running, 5_000 if due else None), own, others, starting=starting)
    assert 0 <= seen.due <= due
    assert seen.running >= sum(each.running for each in own)
    assert seen.busy <= min(seen.workers, seen.running)
    assert seen.workers + seen.draining == len(own)
    assert (seen.oldest_s > 0) == (seen.due > 0)


# Rates

GROUP = JobGroup("default", "m", "")


def counted(event, jobs, total_ms=0, *, queue="default", cause=""):
    return JobCount(event, cause, GROUP._replace(queue=queue), 0, jobs, total_ms)


def arrived(jobs):
    return [counted(CountedEvent.SUBMITTED, jobs)]


def ended(jobs, total_ms):
    return [counted(CountedEvent.FINISHED, jobs, total_ms)]


def rates_of(*readings, queues=("default",)):
    """Return rates with readings at seconds."""
    rates = JobRates(queues)
    for at_s, counts in readings:
        rates.add(round(at_s * 1000), counts)
    return rates


def test_rates_before_the_second_reading():
    rates = JobRates(["default"])
    assert (rates.arrivals_per_s, rates.run_s) == (0.0, None)
    rates.add(1_000, [*arrived(50), *ended(4, 8_000)])
    assert (rates.arrivals_per_s, rates.run_s) == (0.0, 2.0)
    assert rates_of((0, [])).run_s is None


def test_readings_are_seconds_apart():
    rates = JobRates(["default"])
    assert rates.is_due(5_000)
    rates.add(5_000, [])
    assert [rates.is_due(at_ms) for at_ms in (5_000, 14_999, 15_000)] == [False, False, True]
    rates.add(15_000, [])
    assert not rates.is_due(24_999)


def test_arrivals_are_measured_between_the_readings():
    rates = rates_of((0, arrived(100)), (10, arrived(120)), (20, arrived(180)))
    assert rates.arrivals_per_s == 4.0


def test_every_arrival_counts():
    counts = [
        counted(CountedEvent.SUBMITTED, 1),
        counted(CountedEvent.REQUEUED, 2),
        counted(CountedEvent.REPUBLISHED, 4),
        counted(CountedEvent.STARTED, 100),
        counted(CountedEvent.RETRIED, 100),
        counted(CountedEvent.COMPLETED, 100),
        counted(CountedEvent.SUBMITTED, 100, queue="night"),
    ]
    assert rates_of((0, []), (10, counts)).arrivals_per_s == 0.7
    assert rates_of((0, []), (10, counts), queues=("default", "night")).arrivals_per_s == 10.7


def test_arrivals_before_the_window_do_not_count():
    readings = [(at_s, arrived(1_000 if at_s else 0)) for at_s in range(0, 321, 10)]
    rates = JobRates(["default"])
    found = []
    for at_s, counts in readings:
        rates.add(at_s * 1000, counts)
        found.append(rates.arrivals_per_s)
    assert found[1] == 100.0
    assert found[30] == 1_000 / RATES_S
    assert found[31:] == [0.0, 0.0]


def test_pause_of_the_readings_lengthens_the_window():
    assert rates_of((0, arrived(0)), (10, arrived(5)), (1_010, arrived(205))).arrivals_per_s == 0.2


def test_readings_of_one_moment_have_no_arrivals():
    assert rates_of((5, arrived(0)), (5, arrived(10))).arrivals_per_s == 0.0


def test_run_time_is_the_mean_of_the_window():
    rates = rates_of((0, ended(100, 1_000_000)), (10, ended(104, 1_002_000)))
    assert rates.run_s == 0.5
    rates.add(320_000, ended(106, 1_008_000))
    assert rates.run_s == 3.0


def test_run_time_of_all_attempts_counts_if_none_ended_in_the_window():
    rates = rates_of((0, ended(4, 10_000)), (400, ended(4, 10_000)))
    assert rates.run_s == 2.5


def test_retried_attempts_count_and_returned_ones_do_not():
    counts = [
        counted(CountedEvent.FINISHED, 2, 2_000),
        counted(CountedEvent.RETRIED, 2, 6_000, cause="timeout"),
        counted(CountedEvent.RETRIED, 50, 1_000_000, cause="released"),
        counted(CountedEvent.STARTED, 9, 9_000_000),
        counted(CountedEvent.FINISHED, 9, 9_000_000, queue="night"),
    ]
    assert rates_of((0, []), (10, counts)).run_s == 2.0


def test_observation_has_the_rates():
    rates = rates_of((0, []), (10, [*arrived(5), *ended(2, 3_000)]))
    seen = observation(QueueCounts(1), rates=rates)
    assert (seen.arrivals_per_s, seen.run_s) == (0.5, 1.5)
    assert replace(seen, slots=3).service_per_s == 2.0


@given(st.lists(st.integers(1, 200), min_size=1, max_size=100))
def test_readings_are_bounded_by_the_window(gaps_s):
    rates = JobRates(["default"])
    at_s = 0
    for gap_s in gaps_s:
        at_s += gap_s
        if rates.is_due(at_s * 1000):
            rates.add(at_s * 1000, [])
        # One reading may be older than the window.
        assert len(rates._readings) <= RATES_S / 10 + 2
        assert all(at_s - each.at_ms / 1000 < RATES_S + 200 for each in list(rates._readings)[1:])
