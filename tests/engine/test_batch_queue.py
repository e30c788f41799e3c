"""The queue between clients and instances: ordered, bounded, and without lost wake-ups."""

import random
import threading
from collections import Counter
from concurrent.futures import Future

import pytest

import levels
from headrace.batching.adaptive import AdaptiveBatcher, WaitCondition
from headrace.core import InferRequest, InferResponse
from headrace.core.clock import SystemClock
from headrace.core.errors import StoppedError
from headrace.engine.batch_queue import BatchQueue as EngineChannel
from headrace.engine.batch_queue import BlockingConsumer
from headrace.engine.pending_request import FutureCallback, PendingRequest
from headrace.testing import ManualClock

WAIT_S = 30.0
ANSWER = InferResponse(())


def _entry(rows: int = 1) -> PendingRequest:
    return PendingRequest(InferRequest(()), rows, 0.0, FutureCallback(Future()))


class QueueBench:
    """A queue that joins nothing, with one consumer for each taking thread."""

    def __init__(self, in_flight_max: int) -> None:
        batcher = AdaptiveBatcher(rows_max=1, delay_s=0.0, merge=False)
        self.queue = EngineChannel(batcher, ManualClock(), in_flight_max=in_flight_max, queue_rows_max=8)
        self.close, self.drop = self.queue.close, self.queue.drop

    @property
    def dropped(self) -> bool:
        return self.queue.dropped

    def put(self, entry: PendingRequest) -> None:
        self.queue.put(entry, entry.callback.future)

    def take(self) -> PendingRequest | None:
        work = self.queue.take(BlockingConsumer())
        if work is None:
            return None
        self.queue.batch_ended(work)
        (entry,) = work.items
        return entry


def test_requests_leave_in_order():
    queue, entries = QueueBench(3), [_entry() for _ in range(3)]
    for entry in entries:
        queue.put(entry)
    assert [queue.take() for _ in range(3)] == entries


def test_space_is_freed_by_result_not_by_take():
    """The limit is on unanswered requests, not on waiting ones."""
    queue, first, second = QueueBench(1), _entry(), _entry()
    queue.put(first)
    assert queue.take() is first
    through = threading.Event()
    putter = threading.Thread(target=lambda: (queue.put(second), through.set()), daemon=True)
    putter.start()
    assert not through.wait(0.02)
    first.callback.future.set_result(None)
    assert through.wait(WAIT_S)
    assert queue.take() is second


def test_close_wakes_every_consumer():
    """Waiting and later consumers get None."""
    queue, got = QueueBench(1), []
    consumers = [threading.Thread(target=lambda: got.append(queue.take())) for _ in range(3)]
    for consumer in consumers:
        consumer.start()
    queue.close()
    for consumer in consumers:
        consumer.join(WAIT_S)
    assert got == [None] * 3
    assert queue.take() is None


def test_closed_queue_drains_but_accepts_nothing():
    queue, entry = QueueBench(2), _entry()
    queue.put(entry)
    queue.close()
    with pytest.raises(StoppedError):
        queue.put(_entry())
    assert queue.take() is entry
    assert queue.take() is None


def test_drop_returns_waiting_requests():
    """For the owner to fail. A concurrent cancellation is harmless."""
    queue, entry = QueueBench(2), _entry()
    queue.put(entry)
    assert queue.drop() == [entry]
    assert queue.dropped
    assert queue.take() is None
    entry.callback.future.cancel()
    assert not entry.callback.future.set_running_or_notify_cancel()


def test_cancelled_taken_request_stays_with_consumer():
    """Only the consumer calls `start`, which may be called once."""
    queue, entry = QueueBench(1), _entry()
    queue.put(entry)
    assert queue.take() is entry
    entry.callback.future.cancel()
    assert not entry.callback.future.set_running_or_notify_cancel()
    queue.put(_entry())


# Several instances, `offer`, co-batching


class _Consumer:
    """A consumer that records its wake-ups."""

    def __init__(self):
        self.woken = 0

    def wake(self):
        self.woken += 1


def _merging(clock=None, **settings) -> EngineChannel:
    batcher = AdaptiveBatcher(rows_max=settings.pop("rows_max", 4), delay_s=1.0)
    return EngineChannel(
        batcher, clock or ManualClock(), **{"in_flight_max": 8, "queue_rows_max": 8, **settings}
    )


def _expecting(requests: int, clock=None, **settings) -> EngineChannel:
    """Return a queue that expects this number of requests."""
    queue = _merging(clock, **settings)
    for _ in range(requests):
        queue.offer(_entry())
    work = queue.poll(_Consumer())
    assert len(work.items) == min(requests, 4)
    queue.batch_ended(work)
    return queue


def test_offer_is_refused_beyond_queue_rows_max():
    queue = _merging()
    assert queue.offer(_entry(5))
    assert not queue.offer(_entry(4))
    assert queue.offer(_entry(3))
    assert not queue.offer(_entry(1))
    assert queue.waiting()[:2] == (2, 8)


def test_offers_without_rows_are_bounded():
    queue = _merging()
    assert [queue.offer(_entry(0)) for _ in range(9)] == [True] * 8 + [False]


def test_offer_after_close_raises_stopped():
    queue = _merging()
    queue.close()
    with pytest.raises(StoppedError):
        queue.offer(_entry())


def test_withdrawn_request_leaves_at_once():
    """It frees space. Once taken it stays with its consumer, and once ended it does not change."""
    queue = _merging()
    waits, other = _entry(8), _entry(8)
    queue.offer(waits)
    assert queue.withdraw(waits)
    assert waits.cancelled
    assert queue.offer(other)
    assert queue.poll(_Consumer()).items == (other,)
    assert not queue.withdraw(other)
    assert other.cancelled
    queue.mark_ended([other])
    assert not other.ended
    third = _entry()
    queue.mark_ended([third])
    assert not queue.withdraw(third)
    assert (third.ended, third.cancelled) == (True, False)


def test_each_request_wakes_one_consumer():
    """The one that became idle last; no second one while the first is on its way."""
    queue, first, second = _merging(rows_max=1), _Consumer(), _Consumer()
    assert isinstance(queue.poll(first), WaitCondition)
    assert isinstance(queue.poll(second), WaitCondition)
    queue.offer(_entry())
    queue.offer(_entry())
    assert (first.woken, second.woken) == (0, 1)
    assert len(queue.poll(second).items) == 1
    assert (first.woken, second.woken) == (1, 1)
    assert len(queue.poll(first).items) == 1


def test_one_consumer_waits_for_co_batching():
    """The timed consumer is woken when all requests are there, not before. Only it has a timeout."""
    queue, first, second = _expecting(4), _Consumer(), _Consumer()
    assert queue.poll(first) == WaitCondition()
    assert queue.poll(second) == WaitCondition()
    queue.offer(_entry())
    assert (first.woken, second.woken) == (0, 1)
    assert queue.poll(second) == WaitCondition(1.0, rows=4, requests=4)
    assert queue.poll(first) == WaitCondition()
    queue.offer(_entry())
    queue.offer(_entry())
    assert (first.woken, second.woken) == (0, 1)
    queue.offer(_entry())
    assert (first.woken, second.woken) == (0, 2)
    assert len(queue.poll(second).items) == 4


def test_second_idle_instance_gets_surplus():
    """Six wait where four fit."""
    queue, first, second = _expecting(4), _Consumer(), _Consumer()
    queue.poll(first)
    queue.poll(second)
    for _ in range(6):
        queue.offer(_entry())
    assert len(queue.poll(second).items) == 4
    assert first.woken == 1
    assert len(queue.poll(first).items) == 2


def test_delay_ends_co_batching_wait():
    clock = ManualClock()
    queue, consumer = _expecting(4, clock), _Consumer()
    queue.poll(consumer)
    queue.offer(_entry())
    assert queue.poll(consumer).at_s == 1.0
    clock.advance(1.0)
    assert queue.poll(consumer).reason == "delay"


def test_expectation_restarts_after_all_left():
    """The timeout of the timed consumer has passed, but the request that it waited with was
    withdrawn.
    """
    clock = ManualClock()
    queue, consumer, entry = _expecting(4, clock), _Consumer(), _entry()
    queue.poll(consumer)
    queue.offer(entry)
    assert queue.poll(consumer).at_s == 1.0
    queue.withdraw(entry)
    clock.advance(1.0)
    assert queue.poll(consumer) == WaitCondition()
    queue.offer(_entry())
    assert consumer.woken == 2
    assert queue.poll(consumer) is not None


def test_requests_of_dead_instance_go_first():
    """Also while closing."""
    queue, consumer = _merging(), _Consumer()
    lost = [_entry(), _entry()]
    for entry in lost:
        entry.key = entry
    queue.offer(_entry())
    queue.close()
    queue.requeue(lost)
    taken = [queue.poll(consumer).items for _ in range(3)]
    assert {lost[0], lost[1]} <= {items[0] for items in taken}
    assert queue.poll(consumer) is None


def test_requeue_wakes_sleeping_consumer():
    queue, consumer = _merging(), _Consumer()
    queue.poll(consumer)
    queue.requeue([_entry()])
    assert consumer.woken == 1


def test_expected_requests_wake_timed_consumer():
    queue, consumer = _merging(), _Consumer()
    queue.offer(_entry(2))
    queue.offer(_entry(2))
    queue.batch_ended(queue.poll(consumer))
    queue.poll(consumer)
    queue.offer(_entry())
    assert queue.poll(consumer) == WaitCondition(1.0, rows=4, requests=2)
    assert consumer.woken == 1
    queue.offer(_entry())
    assert consumer.woken == 2
    assert len(queue.poll(consumer).items) == 2


def test_drop_races_with_put_and_offer():
    """A drop closes in the same step: a request added later would never end."""
    for _ in range(levels.by_level(10, 50, 500)):
        queue = _merging(queue_rows_max=10**6)
        offered, over = [], threading.Event()

        def offer(queue=queue, offered=offered, over=over):
            try:
                while not over.is_set():
                    entry = _entry()
                    queue.offer(entry)
                    offered.append(entry)
            except StoppedError:
                return

        thread = threading.Thread(target=offer)
        thread.start()
        while len(offered) < 20:
            pass
        dropped = queue.drop()
        assert queue.waiting()[0] == 0
        over.set()
        thread.join(WAIT_S)
        assert len(dropped) == len(offered)


def test_cancelled_futures_are_counted():
    queue, entry = QueueBench(2), _entry()
    queue.put(entry)
    entry.callback.future.cancel()
    assert queue.queue.cancelled == 1
    assert queue.queue.waiting()[0] == 0


@pytest.mark.parametrize("end", ["close", "drop"])
@pytest.mark.parametrize("merge", [True, False])
def test_no_request_is_lost_under_stress(end, merge):
    """Consumers, puts, offers and withdrawals at once, closed at some moment.

    Every accepted request ends exactly once, and every thread ends.
    """
    for seed in range(levels.by_level(2, 4, 40)):
        _stress(random.Random(seed), end, merge=merge)


def _stress(chance: random.Random, end: str, *, merge: bool) -> None:
    clock = SystemClock()
    batcher = AdaptiveBatcher(rows_max=4, delay_s=0.0005, merge=merge)
    queue = EngineChannel(batcher, clock, in_flight_max=5, queue_rows_max=16)
    entered: list[PendingRequest] = []
    ends: list[tuple[str, PendingRequest]] = []
    most_waiting = [0]

    def taking():
        consumer = BlockingConsumer()
        while (work := queue.take(consumer)) is not None:
            assert work.rows == sum(t.rows for t in work.items)
            assert work.rows <= 4 or len(work.items) == 1
            most_waiting[0] = max(most_waiting[0], len(queue._entries_by_future))
            for entry in work.items:
                if entry.callback.start():
                    ends.append(("taken", entry))
                    entry.callback.complete(ANSWER)
            queue.batch_ended(work)

    def putting(seed):
        mine = random.Random(seed)
        for _ in range(60):
            entry = _entry(mine.randrange(1, 6))
            try:
                queue.put(entry, entry.callback.future)
            except StoppedError:
                return
            entered.append(entry)
            if not mine.randrange(3) and entry.callback.future.cancel():
                ends.append(("cancelled", entry))

    def offering(seed):
        mine = random.Random(seed)
        for _ in range(60):
            entry = _entry(mine.randrange(1, 6))
            try:
                if not queue.offer(entry):
                    continue
            except StoppedError:
                return
            entered.append(entry)
            if not mine.randrange(3) and queue.withdraw(entry):
                ends.append(("withdrawn", entry))

    clients = [
        threading.Thread(target=side, args=(chance.random(),), daemon=True)
        for side in (putting, offering, putting, offering)
    ]
    consumers = [threading.Thread(target=taking, daemon=True) for _ in range(3)]
    for thread in [*consumers, *clients]:
        thread.start()
    until = chance.choice((5, 40, 10**9))
    while len(entered) < until and any(t.is_alive() for t in clients):
        pass
    if end == "drop":
        for entry in queue.drop():
            if entry.callback.start():
                ends.append(("dropped", entry))
    queue.close()
    for thread in [*clients, *consumers]:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert Counter(map(id, (t for _, t in ends))) == Counter(map(id, entered))
    assert most_waiting[0] <= 5
    assert queue.waiting() == (0, 0, 0.0, 0)


def test_unavailable_consumer_wakes_another():
    """Its instance died while it waited."""
    queue = EngineChannel(
        AdaptiveBatcher(rows_max=1, delay_s=0.0, merge=False),
        ManualClock(),
        in_flight_max=4,
        queue_rows_max=8,
    )
    healthy, dead = BlockingConsumer(), BlockingConsumer()
    assert isinstance(queue.poll(healthy), WaitCondition)
    assert isinstance(queue.poll(dead), WaitCondition)
    entry = _entry()
    assert queue.offer(entry)  # wakes the latest consumer
    assert isinstance(queue.take(dead, lambda: True), WaitCondition)
    assert healthy._set
    assert queue.poll(healthy).items == (entry,)
    queue.close()
    assert queue.take(dead) is None


def test_abandoned_request_is_not_requeued():
    """Ended requests cannot be abandoned; unknown futures are ignored."""
    queue, entries = QueueBench(4), [_entry() for _ in range(3)]
    for entry in entries:
        queue.put(entry)
    begun, waiting, answered = entries
    assert queue.take() is begun
    inner = queue.queue
    assert inner.abandon(begun.callback.future) is begun
    assert inner.abandon(begun.callback.future) is None
    assert inner.abandon(waiting.callback.future) is waiting
    inner.mark_ended([answered])
    assert inner.abandon(answered.callback.future) is None
    assert inner.abandon(Future()) is None
    assert inner.waiting()[0] == 1
    inner.requeue([begun, waiting])
    assert inner.waiting()[0] == 1
    assert queue.take() is answered
