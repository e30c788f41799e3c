"""Adaptive batching: no request is lost or overtaken, and a lone request never waits."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.batching.adaptive import (
    RECENT_DELAYS,
    AdaptiveBatch,
    AdaptiveBatcher,
    AdaptiveReason,
    WaitCondition,
)
from headrace.core.errors import ConfigError


@dataclass(eq=False)
class Item:
    """A waiting request. Two are never equal."""

    rows: int = 1
    key: Any = "a"
    priority: int = 10
    arrived_s: float = 0.0


def _batcher(*items: Item, **settings: Any) -> AdaptiveBatcher[Item]:
    batcher = AdaptiveBatcher[Item](**{"rows_max": 8, "delay_s": 1.0, **settings})
    for item in items:
        batcher.add(item)
    return batcher


def _next(batcher: AdaptiveBatcher[Item], now: float = 0.0, **how: Any) -> Any:
    return batcher.next(**{"running_rows": 0, "running": 0, "idle_since_s": 0.0, "now": now, **how})


def _after(requests: int, rows: int = 1, **settings: Any) -> AdaptiveBatcher[Item]:
    """Return a batcher that has just closed a batch, and expects its requests again."""
    batcher = _batcher(*(Item(rows) for _ in range(requests)), **settings)
    assert len(_next(batcher, flush=True).items) == requests
    return batcher


@pytest.mark.parametrize("bounds", [{"rows_max": 0}, {"delay_s": -0.1}])
def test_limits_out_of_range_are_refused(bounds):
    with pytest.raises(ConfigError, match="rows_max must be 1 or more"):
        _batcher(**bounds)
    with pytest.raises(ConfigError):
        _batcher().resize(**{"rows_max": 8, "delay_s": 1.0, **bounds})


def test_empty_batcher():
    assert _next(_batcher()) == WaitCondition()
    assert _batcher().oldest_arrival_s() is None


# Waiting for more requests


def test_a_lone_request_never_waits():
    """A client that sends its next request after each response, however long the model takes."""
    batcher = _batcher()
    for step in range(5):
        batcher.add(Item(arrived_s=float(step)))
        batch = _next(batcher, float(step))
        assert (len(batch.items), batch.reason) == (1, AdaptiveReason.EXPECTED_ARRIVED)
        batcher.batch_ended(step + 0.9)


@pytest.mark.parametrize("sizes", [(7, 1, 0, 3, 0), (0,), (8, 20, 1)])
def test_lone_request_does_not_wait_for_its_earlier_rows(sizes):
    """Its client sent more rows, or none, last time."""
    batcher = _batcher()
    for size in sizes:
        batcher.add(Item(rows=size))
        assert isinstance(_next(batcher), AdaptiveBatch)


def test_waits_for_recent_requests():
    """The wait ends when all have arrived."""
    batcher = _after(3)
    for there in range(1, 3):
        batcher.add(Item(arrived_s=0.5))
        assert _next(batcher, 0.5) == WaitCondition(1.5, rows=3, requests=3), there
    batcher.add(Item(arrived_s=0.6))
    batch = _next(batcher, 0.6)
    assert (len(batch.items), batch.reason) == (3, AdaptiveReason.EXPECTED_ARRIVED)


def test_expected_requests_may_have_fewer_rows():
    """Two clients had four rows each; now they have one each."""
    batcher = _after(2, rows=4)
    batcher.add(Item())
    assert _next(batcher) == WaitCondition(1.0, rows=8, requests=2)
    batcher.add(Item())
    assert len(_next(batcher).items) == 2


def test_running_requests_are_not_expected():
    """Of three recent requests, two are in another instance's call."""
    batcher = _after(3)
    batcher.add(Item())
    assert isinstance(_next(batcher, running=1, running_rows=1), WaitCondition)
    assert isinstance(_next(batcher, running=2, running_rows=2), AdaptiveBatch)


def test_running_requests_count_as_recent():
    """A batch of one that closed while five rows ran counts as six."""
    batcher = _batcher(Item())
    assert isinstance(_next(batcher, running=5, running_rows=5), AdaptiveBatch)
    batcher.add(Item())
    assert _next(batcher) == WaitCondition(1.0, rows=6, requests=6)


def test_wait_is_limited_by_the_delay():
    """The delay starts when the instance is idle and a request waits."""
    batcher = _after(3)
    batcher.add(Item(arrived_s=0.25))
    assert _next(batcher, 0.5, idle_since_s=0.5).at_s == 1.5
    assert _next(batcher, 0.5, idle_since_s=0.1).at_s == 1.25
    batch = _next(batcher, 1.25, idle_since_s=0.1)
    assert (len(batch.items), batch.reason) == (1, AdaptiveReason.DELAY)


def test_urgent_requests_do_not_extend_the_wait():
    """The delay runs from the oldest request, not from the most urgent one."""
    batcher = _after(8)
    batcher.add(Item(priority=10, arrived_s=0.0))
    for priority in range(9, 5, -1):
        batcher.add(Item(priority=priority, arrived_s=0.9))
        assert _next(batcher, 0.9).at_s == 1.0
    assert len(_next(batcher, 1.0).items) == 5


def test_old_requests_are_not_expected():
    """Requests that were in flight longer ago say nothing about new ones."""
    batcher = _after(3)
    batcher.batch_ended(0.5)
    late = 0.5 + RECENT_DELAYS * 1.0
    batcher.add(Item(arrived_s=late))
    assert isinstance(_next(batcher, late, idle_since_s=late), WaitCondition)
    assert isinstance(_next(batcher, late + 0.01, idle_since_s=late), AdaptiveBatch)


def test_flush_does_not_wait():
    batcher = _after(3)
    batcher.add(Item())
    assert _next(batcher, flush=True).reason == AdaptiveReason.FLUSH


def test_without_merge_no_request_waits():
    """Without merging every request goes by itself, at once."""
    batcher = _batcher(Item(), Item(), merge=False)
    assert [len(_next(batcher).items) for _ in range(2)] == [1, 1]
    batcher.add(Item())
    assert len(_next(batcher).items) == 1


# Contents of a batch


def test_most_urgent_request_leads_the_batch():
    late, urgent, other, soon = (
        Item(priority=10),
        Item(priority=1),
        Item(priority=2, key="b"),
        Item(priority=5),
    )
    batcher = _batcher(late, urgent, other, soon)
    assert _next(batcher).items == (urgent, soon, late)
    assert _next(batcher, flush=True).items == (other,)


def test_smaller_request_does_not_overtake():
    """A large request closes the batch and leads the next one."""
    first, large, small = Item(4), Item(6), Item(1)
    batcher = _batcher(first, large, small)
    batch = _next(batcher)
    assert (batch.items, batch.rows, batch.reason) == ((first,), 4, AdaptiveReason.ROWS)
    assert _next(batcher, flush=True).items == (large, small)


def test_oversized_request_forms_its_own_batch():
    huge, small = Item(20), Item(1)
    batcher = _batcher(huge, small)
    assert _next(batcher).items == (huge,)
    assert _next(batcher, flush=True).items == (small,)


def test_oldest_key_goes_first_at_equal_priority():
    older, newer = Item(key="z", arrived_s=0.0), Item(key="a", arrived_s=0.1)
    batcher = _batcher(newer, older)
    assert _next(batcher, 0.2).items == (older,)


def test_returning_request_goes_first_in_its_lane():
    waiting, back = Item(), Item()
    batcher = _batcher(waiting)
    batcher.add(back, first=True)
    assert _next(batcher).items == (back, waiting)


def test_drain():
    items = [Item(), Item(2, key="b"), Item(3, priority=1)]
    batcher = _batcher(*items)
    assert sorted(map(id, batcher.drain())) == sorted(map(id, items))
    assert (len(batcher), batcher.rows, batcher.oldest_arrival_s()) == (0, 0, None)


ITEMS = st.tuples(
    st.integers(0, 4), st.sampled_from("aaab"), st.integers(1, 3), st.sampled_from((False, False, True))
)


class AgainstAList(RuleBasedStateMachine):
    """The batcher against a list in order of arrival, with a second version of the waiting rule."""

    @initialize(
        rows_max=st.integers(1, 6),
        delay_s=st.sampled_from((0.0, 1.0, 3.0)),
        merge=st.sampled_from((True, True, False)),
    )
    def begin(self, rows_max, delay_s, merge):
        self.rows_max, self.delay_s, self.merge = rows_max, delay_s, merge
        self.batcher = AdaptiveBatcher[Item](rows_max=rows_max, delay_s=delay_s, merge=merge)
        self.waiting: list[Item] = []
        self.now = 0.0
        self.recent = (0, 0, float("-inf"))

    @rule(items=st.lists(ITEMS, max_size=6))
    def add(self, items):
        for rows, key, priority, first in items:
            item = Item(rows, key, priority, self.now)
            self.batcher.add(item, first=first)
            self.waiting.insert(0 if first else len(self.waiting), item)

    @rule(which=st.integers(0, 9))
    def remove(self, which):
        item = self.waiting.pop(which) if which < len(self.waiting) else None
        assert self.batcher.remove(item or Item()) == bool(item)
        assert item is None or not self.batcher.remove(item)

    @rule(seconds=st.sampled_from((0.25, 0.5, 1.0, 4.0, 20.0)))
    def time_passes(self, seconds):
        self.now += seconds

    @rule()
    def a_batch_ends(self):
        self.batcher.batch_ended(self.now)
        self.recent = (*self.recent[:2], self.now)

    @rule(rows_max=st.integers(1, 6))
    def resize(self, rows_max):
        self.rows_max = rows_max
        self.batcher.resize(rows_max=rows_max, delay_s=self.delay_s)

    @rule()
    def drain(self):
        drained = self.batcher.drain()
        assert sorted(map(id, drained)) == sorted(map(id, self.waiting))
        self.waiting = []

    @rule(
        items=st.lists(ITEMS, max_size=6),
        running=st.integers(0, 3),
        each=st.integers(0, 2),
        idle_s=st.sampled_from((0.0, 0.5, 2.0)),
        flush=st.sampled_from((False, False, True)),
    )
    def ask(self, *, items, running, each, idle_s, flush):
        # Added here too, because hypothesis may leave out the rule `add`.
        self.add(items=items)
        idle_since_s = self.now - idle_s
        how = {"running": running, "running_rows": running * each, "idle_since_s": idle_since_s}
        due_s = self._due_s(**how)
        found = self.batcher.next(**how, now=self.now, flush=flush)
        if isinstance(found, WaitCondition):
            assert found.at_s == (due_s if self.waiting else None)
            assert not self.waiting or (not flush and due_s > self.now)
            return
        assert flush or due_s is None or due_s <= self.now
        self.recent = (
            len(self.waiting) + running,
            sum(i.rows for i in self.waiting) + running * each,
            self.now,
        )
        assert list(found.items) in self._best()
        assert found.rows == sum(i.rows for i in found.items)
        for item in found.items:
            self.waiting.remove(item)

    def _due_s(self, running, running_rows, idle_since_s):
        """Return the time at which the wait ends, or None if no request is expected."""
        requests, rows, when_s = self.recent
        if not self.waiting or not self.merge or self.now - when_s > RECENT_DELAYS * self.delay_s:
            return None
        more_requests = requests - running > len(self.waiting)
        more_rows = min(self.rows_max, rows - running_rows) > sum(i.rows for i in self.waiting)
        if not more_requests or not more_rows:
            return None
        return max(idle_since_s, min(self._first_of_lanes().values())) + self.delay_s

    def _first_of_lanes(self):
        first: dict[tuple[int, str], float] = {}
        for item in self.waiting:
            first.setdefault((item.priority, item.key), item.arrived_s)
        return first

    def _best(self):
        """Return the possible batches: several if keys tie in urgency and age."""
        first = self._first_of_lanes()
        urgency = min((priority, arrived_s) for (priority, _), arrived_s in first.items())
        return [self._together(key) for (p, key), arrived_s in first.items() if (p, arrived_s) == urgency]

    def _together(self, key):
        queue = sorted((i for i in self.waiting if i.key == key), key=lambda i: i.priority)
        taken = [queue[0]]
        for item in queue[1:] if self.merge else ():
            if sum(i.rows for i in taken) + item.rows > self.rows_max:
                break
            taken.append(item)
        return taken

    @invariant()
    def counts_agree(self):
        if not hasattr(self, "batcher"):
            return
        assert len(self.batcher) == len(self.waiting)
        assert self.batcher.rows == sum(i.rows for i in self.waiting)


TestAgainstAList = AgainstAList.TestCase
TestAgainstAList.settings = settings(stateful_step_count=20)
