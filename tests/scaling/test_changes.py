"""The steps that bring the workers of a pool to a wanted number."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

import levels
from cases import for_each
from headrace.jobs.worker_registry import WorkerState
from headrace.scaling.actuator import Members
from headrace.scaling.changes import Changes, plan_changes
from scaling.records import record

OURS = "pool p"


def plan(wanted, *records, starting=0) -> Changes:
    return plan_changes(wanted, Members(tuple(records), starting), drained_by=OURS)


def names(records):
    return [each.info.name for each in records]


def test_shortage_starts_workers():
    assert plan(3) == Changes(workers=3)
    assert plan(3, record("a"), starting=1) == Changes(workers=3)


def test_right_number_changes_nothing():
    assert plan(2, record("a", running=1), record("b")) == Changes(workers=2)
    assert plan(2, record("a"), starting=1) == Changes(workers=2)


def test_surplus_drains_and_stays_in_the_pool():
    a, b = record("a"), record("b")
    assert plan(0, a, b) == Changes(drain=(a, b), workers=2)


def test_idle_workers_drain_first_and_then_those_with_the_fewest_jobs():
    records = [record("full", running=4), record("idle"), record("half", running=2), record("one", running=1)]
    assert [names(plan(wanted, *records).drain) for wanted in (3, 2, 1)] == [
        ["idle"],
        ["idle", "one"],
        ["idle", "one", "half"],
    ]


def test_youngest_of_equally_busy_workers_drain_first():
    records = [
        record("old", started_at_ms=1),
        record("young", started_at_ms=3),
        record("busy", running=1, started_at_ms=9),
        record("middle", started_at_ms=2),
    ]
    assert names(plan(1, *records).drain) == ["young", "middle", "old"]


def test_equal_workers_drain_by_name():
    assert names(plan(1, record("b"), record("c"), record("a")).drain) == ["a", "b"]


def test_starting_workers_do_not_drain_registered_ones():
    assert plan(2, record("a"), record("b"), starting=3) == Changes(workers=5)


def test_shortage_ends_own_drains_before_workers_start():
    draining = record("a", running=1, drained_by=OURS)
    drained = record("b", drained_by=OURS, claims=False)
    working = record("c")
    assert plan(2, draining, drained, working) == Changes(undrain=(draining,), ended=(drained,), workers=2)
    assert plan(3, draining, drained, working) == Changes(undrain=(draining, drained), workers=3)
    assert plan(5, draining, drained, working) == Changes(undrain=(draining, drained), workers=5)


def test_starting_workers_are_part_of_the_shortage():
    draining = record("a", running=1, drained_by=OURS)
    assert plan(2, draining, starting=2) == Changes(workers=3)
    assert plan(3, draining, starting=2) == Changes(undrain=(draining,), workers=3)


@for_each("by", ["ops", "pool q", ""])
def test_drains_by_others_are_not_undone(by):
    draining = record("a", running=1, drained_by=by)
    assert plan(1, draining) == Changes(workers=2)


def test_drained_workers_end_whoever_ordered_it():
    by_us = record("a", drained_by=OURS, claims=False)
    by_operator = record("b", drained_by="ops", claims=False)
    assert plan(0, by_us, by_operator) == Changes(ended=(by_us, by_operator), workers=0)
    assert plan(1, by_operator) == Changes(ended=(by_operator,), workers=1)


@for_each("left", [{"running": 1, "claims": False}, {"claims": True}])
def test_draining_workers_do_not_end(left):
    assert plan(0, record("a", drained_by=OURS, **left)) == Changes(workers=1)


# Properties

registered = st.builds(
    record,
    st.just("w"),
    running=st.integers(0, 4),
    drained_by=st.sampled_from([None, None, OURS, "ops"]),
    claims=st.booleans(),
    started_at_ms=st.integers(0, 3),
)


class SimulatedPool:
    """A pool that carries plans out. Its workers register, run jobs, drain and end."""

    def __init__(self, records, starting):
        self.starting = 0
        self.records = []
        self.names = 0
        for each in records:
            self._add(each)
        self.starting = starting

    def _add(self, new):
        self.names += 1
        self.records.append(replace(new, info=replace(new.info, name=f"w-{self.names:03}")))

    def members(self):
        return Members(tuple(self.records), self.starting)

    def claiming(self):
        return sum(not each.draining for each in self.records)

    def apply(self, changes):
        """Carry out a plan, and check that it harms no job."""
        assert all(each.draining_by == OURS for each in changes.undrain)
        assert not set(names(changes.undrain)) & set(names(changes.ended))
        for each in changes.ended:
            assert (each.state, each.running) == (WorkerState.DRAINED, 0)
        drains = dict.fromkeys(names(changes.drain), True) | dict.fromkeys(names(changes.undrain), False)
        kept = [each for each in self.records if each.info.name not in names(changes.ended)]
        self.records = [
            replace(
                each, draining=now, draining_by=OURS if now else "", report=replace(each.report, claims=True)
            )
            if (now := drains.get(each.info.name)) is not None
            else each
            for each in kept
        ]
        assert changes.workers >= len(kept) + self.starting, "the plan would end a worker that nobody chose"
        self.starting = changes.workers - len(kept)

    def register(self):
        if self.starting:
            self.starting -= 1
            self._add(record("w", started_at_ms=self.names))

    def progress(self, number, finished):
        """Let a worker confirm its drain, or end jobs."""
        if self.records:
            place = number % len(self.records)
            each = self.records[place]
            self.records[place] = replace(
                each,
                running=max(0, each.running - finished),
                report=replace(each.report, claims=each.report.claims and not each.draining),
            )


progress = st.one_of(
    st.just(("register",)), st.tuples(st.just("progress"), st.integers(0, 20), st.integers(0, 2))
)


@settings(max_examples=levels.examples(4))
@given(
    st.lists(registered, max_size=8),
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(0, 10), st.lists(progress, max_size=4)), max_size=8),
    st.integers(0, 10),
)
def test_plans_bring_the_pool_to_the_wanted_number(records, starting, rounds, wanted):
    pool = SimulatedPool(records, starting)
    for wanted_before, events in rounds:
        pool.apply(plan_changes(wanted_before, pool.members(), drained_by=OURS))
        for name, *arguments in events:
            getattr(pool, name)(*arguments)
    # From now on every worker makes progress, but those that claim remain busy.
    for _ in range(6):
        pool.apply(plan_changes(wanted, pool.members(), drained_by=OURS))
        for _ in range(pool.starting):
            pool.register()
        for number, each in enumerate(pool.records):
            pool.progress(number, 2 if each.draining else 0)
    assert (pool.claiming(), pool.starting) == (wanted, 0)
    assert plan_changes(wanted, pool.members(), drained_by=OURS) == Changes(workers=wanted)


@settings(max_examples=levels.examples(4))
@given(st.lists(registered, max_size=8), st.integers(0, 3), st.integers(0, 12))
def test_plan_keeps_the_workers_with_the_most_jobs(records, starting, wanted):
    pool = SimulatedPool(records, starting)
    changes = plan_changes(wanted, pool.members(), drained_by=OURS)
    drained = {each.info.name for each in changes.drain}
    claiming = [each for each in pool.records if not each.draining]
    kept = [each for each in claiming if each.info.name not in drained]
    assert len(kept) == min(wanted, len(claiming))
    assert max((each.running for each in changes.drain), default=0) <= min(
        (each.running for each in kept), default=99
    )
    assert not (changes.drain and changes.undrain)


@settings(max_examples=levels.examples(4))
@given(st.lists(registered, max_size=8), st.integers(0, 3), st.integers(0, 12))
def test_workers_start_only_if_no_own_drain_is_left(records, starting, wanted):
    pool = SimulatedPool(records, starting)
    changes = plan_changes(wanted, pool.members(), drained_by=OURS)
    started = changes.workers - (pool.members().count - len(changes.ended))
    assert started >= 0
    if started:
        own = [each for each in pool.records if each.draining_by == OURS]
        assert set(names(own)) == set(names(changes.undrain))
        assert pool.claiming() + starting + len(changes.undrain) + started == wanted
