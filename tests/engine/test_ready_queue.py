"""Ready work and the instances that take it: full batches, and no lost wake-ups."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from engine.support import WAIT_S, pending_request, request, rows
from headrace.batching.adaptive import AdaptiveBatch, AdaptiveReason, ReadyQueue, WaitCondition
from headrace.engine.pending_request import PendingRequest
from headrace.engine.request_queue import BlockingConsumer

NOTHING_WAITS = WaitCondition()


class _Consumer:
    """A consumer that records its wake-ups."""

    def __init__(self):
        self.woken = 0

    def wake(self):
        self.woken += 1


def _entry(count: int = 1) -> PendingRequest:
    return pending_request(request(rows(*range(count))))


def _queue(*, rows_max=4, **settings) -> ReadyQueue:
    queue = ReadyQueue(**{"shared": True, **settings})
    queue.resize(rows_max=rows_max, delay_s=1.0)
    return queue


def _ask(queue, consumer, now=0.0, *, flush=False):
    """Return the next batch, or the condition for which the consumer sleeps."""
    found = queue.next_for(consumer, now, flush=flush)
    return found if isinstance(found, AdaptiveBatch) else queue.sleep(consumer, found)


def _taken(queue, consumer, now=0.0) -> int:
    """Take a batch; return its number of items."""
    return len(_ask(queue, consumer, now).items)


def _end(queue, batch, now=0.0):
    queue.end(len(batch.items), batch.rows, now)


def _expecting(count: int, **settings) -> ReadyQueue:
    """Return a queue that expects this number of items."""
    queue = _queue(**settings)
    for _ in range(count):
        queue.add(_entry())
    batch = _ask(queue, _Consumer())
    assert len(batch.items) == count
    _end(queue, batch)
    return queue


# Batches


def test_lone_item_does_not_wait():
    queue, entry = _queue(), _entry()
    queue.add(entry)
    assert _ask(queue, _Consumer()) == AdaptiveBatch((entry,), 1, AdaptiveReason.EXPECTED_ARRIVED)
    assert _ask(queue, _Consumer()) == NOTHING_WAITS


def test_items_do_not_share_batches_without_merge():
    queue, entries = _queue(merge=False), [_entry() for _ in range(3)]
    for entry in entries:
        queue.add(entry)
    assert [_ask(queue, _Consumer()).items for _ in range(3)] == [(entry,) for entry in entries]


def test_waiting_and_running_items_are_counted():
    queue = _queue(rows_max=3)
    assert (queue.fills_call, queue.oldest_arrival_s()) == (False, None)
    for arrived_s, count in ((3.0, 2), (4.0, 2)):
        entry = _entry(count)
        entry.arrived_s = arrived_s
        queue.add(entry)
    assert (len(queue), queue.rows, queue.oldest_arrival_s(), queue.running) == (2, 4, 3.0, 0)
    assert queue.fills_call
    batch = _ask(queue, _Consumer(), 5.0)
    assert (len(queue), queue.rows, queue.oldest_arrival_s(), queue.running) == (1, 2, 4.0, 1)
    assert not queue.fills_call
    _end(queue, batch, 6.0)
    assert queue.running == 0


def test_removed_and_drained_items_are_not_taken():
    queue, entries = _queue(), [_entry() for _ in range(4)]
    for entry in entries[:3]:
        queue.add(entry)
    assert queue.remove(entries[1])
    assert not queue.remove(entries[1])
    assert not queue.remove(entries[3])
    assert queue.drain() == [entries[0], entries[2]]
    assert _ask(queue, _Consumer()) == NOTHING_WAITS


def test_returning_item_goes_first():
    queue, consumer = _queue(merge=False), _Consumer()
    entries = [_entry() for _ in range(3)]
    queue.add(entries[0])
    queue.add(entries[1])
    queue.add(entries[2], first=True)
    assert [_ask(queue, consumer).items for _ in range(3)] == [(entries[2],), (entries[0],), (entries[1],)]


def test_only_full_batch_is_taken_ahead():
    queue, entries = _queue(rows_max=2), [_entry(), _entry()]
    queue.add(entries[0])
    assert queue.next_full(0.0) is None
    queue.add(entries[1])
    assert queue.next_full(0.0).items == tuple(entries)
    assert (len(queue), queue.running) == (0, 2)
    assert queue.next_full(0.0) is None


# Consumers


def test_each_item_wakes_one_consumer():
    """The one that became idle last; no second one while the first is on its way."""
    queue, first, second = _queue(rows_max=1), _Consumer(), _Consumer()
    assert _ask(queue, first) == _ask(queue, second) == NOTHING_WAITS
    assert queue.is_asleep
    queue.add(_entry())
    queue.add(_entry())
    assert (first.woken, second.woken, queue.is_asleep) == (0, 1, False)
    assert _taken(queue, second) == 1
    assert (first.woken, second.woken) == (1, 1)
    assert _taken(queue, first) == 1


def test_one_consumer_waits_for_co_batching():
    """The timed consumer is woken when all items are there, not before. Only it has a timeout."""
    queue, first, second = _expecting(4), _Consumer(), _Consumer()
    assert _ask(queue, first) == _ask(queue, second) == NOTHING_WAITS
    queue.add(_entry())
    assert (first.woken, second.woken) == (0, 1)
    assert _ask(queue, second) == WaitCondition(1.0, rows=4, requests=4)
    assert _ask(queue, first) == NOTHING_WAITS
    queue.add(_entry())
    queue.add(_entry())
    assert (first.woken, second.woken) == (0, 1)
    queue.add(_entry())
    assert (first.woken, second.woken) == (0, 2)
    assert _taken(queue, second) == 4


def test_second_idle_instance_gets_surplus():
    """Six wait where four fit."""
    queue, first, second = _expecting(4), _Consumer(), _Consumer()
    _ask(queue, first)
    _ask(queue, second)
    for _ in range(6):
        queue.add(_entry())
    assert _taken(queue, second) == 4
    assert first.woken == 1
    assert _taken(queue, first) == 2


def test_delay_ends_co_batching_wait():
    queue, consumer = _expecting(4), _Consumer()
    _ask(queue, consumer)
    queue.add(_entry())
    assert _ask(queue, consumer).at_s == 1.0
    assert _ask(queue, consumer, 1.0).reason == AdaptiveReason.DELAY


def test_expectation_restarts_after_all_left():
    """The timeout of the timed consumer has passed, but the item that it waited with was withdrawn."""
    queue, consumer, entry = _expecting(4), _Consumer(), _entry()
    _ask(queue, consumer)
    queue.add(entry)
    assert _ask(queue, consumer).at_s == 1.0
    queue.remove(entry)
    assert _ask(queue, consumer, 1.0) == NOTHING_WAITS
    queue.add(_entry())
    assert consumer.woken == 2
    assert _taken(queue, consumer, 1.0) == 1


def test_expected_items_wake_timed_consumer():
    """Either the rows or the requests."""
    queue, consumer = _queue(), _Consumer()
    queue.add(_entry(2))
    queue.add(_entry(2))
    _end(queue, _ask(queue, consumer))
    _ask(queue, consumer)
    queue.add(_entry())
    assert _ask(queue, consumer) == WaitCondition(1.0, rows=4, requests=2)
    assert consumer.woken == 1
    queue.add(_entry())
    assert consumer.woken == 2
    assert _taken(queue, consumer) == 2


@for_each("flush", [False, True])
def test_urgent_item_skips_co_batching_wait(flush):
    """Also those that wait beside it; later ones wait again."""
    queue, consumer = _expecting(4), _Consumer()
    queue.add(_entry())
    assert _ask(queue, consumer) == WaitCondition(1.0, rows=4, requests=4)
    queue.add(_entry(), flush=flush)
    assert consumer.woken == flush
    found = _ask(queue, consumer)
    assert (len(found.items) == 2) if flush else isinstance(found, WaitCondition)
    if flush:
        _end(queue, found)
        queue.add(_entry())
        assert _ask(queue, consumer) == WaitCondition(1.0, rows=2, requests=2)


@for_each("shared", [False, True])
def test_items_that_others_run_are_not_expected(shared):
    """If instances share the queue. The only instance of a queue has ended its last batch when it asks."""
    queue = _queue(shared=shared)
    queue.add(_entry())
    queue.add(_entry())
    _ask(queue, _Consumer())
    queue.add(_entry())
    found = _ask(queue, _Consumer())
    assert (len(found.items) == 1) if shared else (found == WaitCondition(1.0, rows=2, requests=2))


def test_consumer_that_leaves_is_not_woken():
    """Neither as one that sleeps, nor as the one that waits for co-batching."""
    queue, leaves, stays = _expecting(4), _Consumer(), _Consumer()
    _ask(queue, leaves)
    queue.add(_entry())
    assert _ask(queue, leaves).at_s == 1.0
    _ask(queue, stays)
    queue.mark_awake(leaves)
    queue.wake_one()
    for _ in range(4):
        queue.add(_entry())
    assert (leaves.woken, stays.woken) == (1, 1)
    assert queue.is_asleep is False
    assert _taken(queue, stays) == 4


def test_all_consumers_are_woken_at_once():
    queue, consumers = _queue(), [_Consumer() for _ in range(3)]
    for consumer in consumers:
        _ask(queue, consumer)
    queue.wake_all()
    queue.wake_all()
    assert [consumer.woken for consumer in consumers] == [1, 1, 1]


def test_work_of_dead_instance_runs_no_more():
    queue = _queue(shared=False)
    queue.add(_entry(2))
    _ask(queue, _Consumer())
    queue.forget_running()
    assert queue.running == 0


@given(
    st.booleans(),
    st.booleans(),
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(1, 5)),
            st.tuples(st.just("urgent"), st.integers(1, 5)),
            st.tuples(st.just("remove"), st.integers(0, 3)),
            st.tuples(st.just("ask"), st.integers(0, 2)),
            st.tuples(st.just("end"), st.integers(0, 3)),
            st.tuples(st.just("leave"), st.integers(0, 2)),
            st.tuples(st.just("time"), st.integers(0, 2)),
        ),
        max_size=60,
    ),
)
def test_no_item_waits_while_every_consumer_sleeps_without_timeout(merge, shared, events):
    """For any order of events: each item is taken once, and a wake-up or a timeout leads to it."""
    queue = _queue(merge=merge, shared=shared)
    consumers = [_Consumer() for _ in range(3)]
    seen = dict.fromkeys(consumers, 0)
    sleeping: dict[_Consumer, WaitCondition] = {}
    waiting, running, taken, now = [], [], [], 0.0

    def ask(consumer):
        seen[consumer] = consumer.woken
        found = _ask(queue, consumer, now)
        if isinstance(found, WaitCondition):
            sleeping[consumer] = found
            return
        sleeping.pop(consumer, None)
        assert found.rows == sum(entry.rows for entry in found.items)
        assert found.rows <= 4 or len(found.items) == 1
        assert merge or len(found.items) == 1
        for entry in found.items:
            waiting.remove(entry)
            taken.append(entry)
        running.append(found)

    for kind, number in events:
        if kind in ("add", "urgent"):
            entry = _entry(number)
            entry.arrived_s = now
            waiting.append(entry)
            queue.add(entry, flush=kind == "urgent")
        elif kind == "remove" and number < len(waiting):
            assert queue.remove(waiting.pop(number))
        elif kind == "ask":
            ask(consumers[number])
        elif kind == "end" and number < len(running):
            _end(queue, running.pop(number), now)
        elif kind == "leave":
            sleeping.pop(consumers[number], None)
            seen[consumers[number]] = consumers[number].woken
            queue.mark_awake(consumers[number])
            queue.wake_one()
        elif kind == "time":
            now += number / 2
        assert (len(queue), queue.rows) == (len(waiting), sum(entry.rows for entry in waiting))
        assert queue.running == sum(len(batch.items) for batch in running)
        # A woken consumer asks; one with a timeout asks then.
        on_the_way = [c for c in sleeping if c.woken > seen[c] or sleeping[c].at_s is not None]
        assert not waiting or not sleeping or on_the_way
    while waiting and sleeping:
        now += 1.0
        ask(next(c for c in sleeping if c.woken > seen[c] or sleeping[c].at_s is not None))
    assert len(set(map(id, taken))) == len(taken)


def test_blocking_consumer_keeps_one_wake_up():
    """A wake-up before the wait is not lost, and several count once."""
    consumer = BlockingConsumer()
    consumer.wake()
    consumer.wake()
    consumer.wait(None)
    woken = threading.Event()
    waiter = threading.Thread(target=lambda: (consumer.wait(None), woken.set()), daemon=True)
    waiter.start()
    assert not woken.wait(0.02)
    consumer.wake()
    assert woken.wait(WAIT_S)
    waiter.join(WAIT_S)


def test_blocking_consumer_waits_up_to_timeout():
    """A timeout in the past is none at all."""
    consumer = BlockingConsumer()
    consumer.wait(0.001)
    consumer.wait(-1.0)
    consumer.wake()
    consumer.wait(0.0)
    assert not consumer._set
