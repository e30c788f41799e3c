"""The queue between clients and instances: ordered, bounded, and without lost requests."""

import random
import threading
from collections import Counter
from concurrent.futures import Future, wait
from types import SimpleNamespace

import pytest

import levels
from cases import for_each
from engine.support import WAIT_S, pending_request, request, rows
from headrace.batching.adaptive import WaitCondition
from headrace.core import InferResponse
from headrace.core.clock import SystemClock
from headrace.core.errors import StoppedError
from headrace.engine.pending_request import PendingRequest
from headrace.engine.request_queue import BlockingConsumer, RequestQueue
from headrace.engine.schedule import IndependentRequests, TakenBatch
from headrace.testing import ManualClock

RESPONSE = InferResponse(())


class Refusing(IndependentRequests):
    """A schedule that refuses negative priorities."""

    def add(self, entry, **settings):
        if entry.priority < 0:
            raise ValueError("refused")
        super().add(entry, **settings)


class QueueBench:
    """A queue of independent requests, with a new consumer for each take, and its test's shortcuts."""

    def __init__(
        self, in_flight_max=2, *, queue_rows_max=8, clock=None, merge=False, rows_max=1, delay_s=0.0
    ) -> None:
        self.schedule = Refusing(merge=merge)
        self.clock = clock or ManualClock()
        self.queue = RequestQueue(
            self.clock,
            self.schedule,
            model="m",
            in_flight_max=in_flight_max,
            queue_rows_max=queue_rows_max,
            deliver_results=self._no_results,
        )
        self.queue.resize(rows_max=rows_max, delay_s=delay_s)
        self.close, self.drop, self.offer = self.queue.close, self.queue.drop, self.queue.offer
        self.withdraw, self.abandon = self.queue.withdraw, self.queue.abandon
        self.mark_ended = self.queue.mark_ended

    @staticmethod
    def _no_results(results) -> None:
        raise AssertionError(results)

    @property
    def waits(self) -> int:
        return self.queue.waiting()[0]

    def put(self, entry: PendingRequest) -> PendingRequest:
        self.queue.put(entry, entry.callback.future)
        return entry

    def take(self) -> PendingRequest | None:
        """Return the only request of the next batch, whose end is recorded."""
        batch = self.take_batch()
        if batch is None:
            return None
        self.end(batch)
        (entry,) = batch.work
        return entry

    def take_batch(self, consumer: BlockingConsumer | None = None) -> TakenBatch | None:
        return self.queue.take(consumer or BlockingConsumer())

    def ask(self, consumer: BlockingConsumer) -> TakenBatch | WaitCondition | None:
        """Return the next batch, or the condition for which the consumer would wait."""
        with self.queue.lock:
            return self.schedule.take(consumer, 0, self.clock.now(), closed=self.queue.closed)

    def end(self, batch: TakenBatch) -> None:
        with self.queue.lock:
            self.schedule.end(len(batch.work), batch.rows, self.clock.now())

    def requeue(self, entries) -> None:
        with self.queue.lock:
            self.schedule.requeue(entries)


def _entry(count: int = 1, **settings) -> PendingRequest:
    return pending_request(request(rows(*range(count)), **settings))


def _blocked_put(queue, entry):
    """Return the thread that puts a request into a full queue, and an event for its end."""
    through = threading.Event()
    thread = threading.Thread(target=lambda: (queue.put(entry), through.set()), daemon=True)
    thread.start()
    assert not through.wait(0.02)
    return thread, through


# Order and space


def test_requests_leave_in_order():
    queue = QueueBench(3)
    entries = [queue.put(_entry()) for _ in range(3)]
    assert [queue.take() for _ in range(3)] == entries


def test_batch_has_requests_that_fit_and_its_reason():
    queue = QueueBench(4, merge=True, rows_max=3)
    entries = [queue.put(_entry()) for _ in range(4)]
    batch = queue.take_batch()
    assert (batch.work, batch.rows, batch.reason, batch.endings) == (tuple(entries[:3]), 3, "rows", ())
    assert queue.queue.waiting() == (1, 1, 0.0, 3)
    queue.end(batch)
    assert queue.queue.waiting() == (1, 1, 0.0, 0)


def test_age_is_that_of_oldest_request():
    queue = QueueBench()
    queue.put(_entry())
    queue.clock.advance(3.0)
    assert queue.queue.waiting() == (1, 1, 3.0, 0)


def test_space_is_freed_by_result_not_by_take():
    """The limit is on unanswered requests, not on waiting ones."""
    queue, first, second = QueueBench(1), _entry(), _entry()
    queue.put(first)
    assert queue.take() is first
    _, through = _blocked_put(queue, second)
    first.callback.future.set_result(None)
    assert through.wait(WAIT_S)
    assert queue.take() is second


def test_refused_request_takes_no_space():
    queue = QueueBench(1)
    with pytest.raises(ValueError, match="refused"):
        queue.put(_entry(priority=-1))
    with pytest.raises(ValueError, match="refused"):
        queue.offer(_entry(priority=-1))
    assert (queue.queue._entries_by_future, queue.waits) == ({}, 0)
    queue.put(_entry())


def test_offer_is_refused_beyond_queue_rows_max():
    queue = QueueBench()
    assert queue.offer(_entry(5))
    assert not queue.offer(_entry(4))
    assert queue.offer(_entry(3))
    assert not queue.offer(_entry(1))
    assert queue.queue.waiting()[:2] == (2, 8)


def test_offer_larger_than_limit_is_accepted_if_nothing_waits():
    queue = QueueBench()
    assert queue.offer(_entry(9))
    assert not queue.offer(_entry(1))


def test_offers_without_rows_are_bounded():
    queue = QueueBench()
    assert [queue.offer(_entry(0)) for _ in range(9)] == [True] * 8 + [False]


@for_each("merge", [True, False])
def test_full_batch_can_be_taken_ahead(merge):
    """Unless the queue is closed."""
    queue = QueueBench(merge=merge, rows_max=2)
    queue.put(_entry())
    assert not queue.schedule.is_full(0)
    assert queue.queue.take_full(0) is None
    queue.put(_entry())
    assert queue.schedule.is_full(0)
    assert len(queue.queue.take_full(0).work) == 1 + merge
    queue.offer(_entry(2))
    queue.close()
    assert queue.queue.take_full(0) is None


# Withdrawals


def test_cancelled_future_leaves_queue():
    queue = QueueBench()
    one = queue.put(_entry())
    assert one.callback.future.cancel()
    assert wait([one.callback.future], timeout=WAIT_S).done == {one.callback.future}
    assert (queue.waits, queue.queue.cancelled, one.cancelled) == (0, 1, True)


def test_cancelled_taken_request_stays_with_consumer():
    """Only the consumer calls `start`, which may be called once."""
    queue, entry = QueueBench(1), _entry()
    queue.put(entry)
    assert queue.take() is entry
    entry.callback.future.cancel()
    assert not entry.callback.future.set_running_or_notify_cancel()
    queue.put(_entry())


def test_withdrawn_request_leaves_at_once():
    """It frees space. Once taken it stays with its consumer, and once ended it does not change."""
    queue = QueueBench(merge=True)
    waits, other = _entry(8), _entry(8)
    queue.offer(waits)
    assert queue.withdraw(waits)
    assert waits.cancelled
    assert queue.offer(other)
    assert queue.take_batch().work == (other,)
    assert not queue.withdraw(other)
    assert other.cancelled
    queue.mark_ended([other])
    assert not other.ended
    third = _entry()
    queue.mark_ended([third])
    assert not queue.withdraw(third)
    assert (third.ended, third.cancelled) == (True, False)


def test_request_is_ended_or_withdrawn_never_both():
    queue = QueueBench()
    one, other = queue.put(_entry()), queue.put(_entry())
    queue.mark_ended([one])
    assert not queue.withdraw(one)
    assert queue.withdraw(other)
    queue.mark_ended([other])
    assert [(t.ended, t.cancelled) for t in (one, other)] == [(True, False), (False, True)]


def test_abandoned_request_leaves_once():
    queue = QueueBench()
    one = queue.put(_entry())
    assert queue.abandon(one.callback.future) is one
    assert queue.abandon(one.callback.future) is None
    assert queue.abandon(Future()) is None
    assert queue.waits == 0


def test_abandoned_request_is_not_requeued():
    """Ended requests cannot be abandoned."""
    queue = QueueBench(4)
    begun, waiting, answered = [queue.put(_entry()) for _ in range(3)]
    assert queue.take() is begun
    assert queue.abandon(begun.callback.future) is begun
    assert queue.abandon(begun.callback.future) is None
    assert queue.abandon(waiting.callback.future) is waiting
    queue.mark_ended([answered])
    assert queue.abandon(answered.callback.future) is None
    assert queue.waits == 1
    queue.requeue([begun, waiting])
    assert queue.waits == 1
    assert queue.take() is answered


# Instances


def test_requests_of_dead_instance_go_first():
    """In their order, also while closing."""
    queue = QueueBench(merge=True, rows_max=4)
    lost = [_entry(), _entry()]
    queue.offer(_entry())
    queue.close()
    queue.requeue(lost)
    assert queue.take_batch().work[:2] == tuple(lost)
    assert queue.take_batch() is None


def test_suspect_requests_of_dead_instance_are_taken_alone():
    queue = QueueBench(merge=True, rows_max=4)
    lost = [_entry(), _entry()]
    for entry in lost:
        entry.key = entry
    queue.offer(_entry())
    queue.requeue(lost)
    taken = [queue.take_batch().work for _ in range(3)]
    assert all(len(entries) == 1 for entries in taken)
    assert set(lost) <= {entry for (entry,) in taken}


def test_requeue_wakes_sleeping_consumer():
    queue, consumer = QueueBench(), BlockingConsumer()
    assert isinstance(queue.ask(consumer), WaitCondition)
    queue.requeue([_entry()])
    assert consumer._set


def test_instance_waits_for_co_batching_up_to_its_delay():
    """Its wait ends with the expected requests, or by the clock."""
    clock = ManualClock()
    queue, consumer = QueueBench(merge=True, rows_max=2, delay_s=1.0, clock=clock), BlockingConsumer()
    for _ in range(2):
        queue.offer(_entry())
    queue.end(queue.take_batch(consumer))
    queue.offer(_entry())
    assert queue.ask(consumer) == WaitCondition(1.0, rows=2, requests=2)
    queue.offer(_entry())
    assert len(queue.take_batch(consumer).work) == 2
    queue.offer(_entry())
    queue.clock.advance(1.0)
    assert queue.take_batch(consumer).rows == 1


def test_closed_queue_waits_for_no_co_batching():
    queue = QueueBench(merge=True, rows_max=4, delay_s=1.0)
    for _ in range(4):
        queue.offer(_entry())
    queue.end(queue.take_batch())
    queue.offer(_entry())
    queue.close()
    assert queue.take_batch().reason == "flush"


def test_unavailable_consumer_wakes_another():
    """Its instance died while it waited."""
    queue = QueueBench(4)
    healthy, dead = BlockingConsumer(), BlockingConsumer()
    assert isinstance(queue.ask(healthy), WaitCondition)
    assert isinstance(queue.ask(dead), WaitCondition)
    entry = _entry()
    assert queue.offer(entry)  # wakes the latest consumer
    assert isinstance(queue.queue.take(dead, 0, SimpleNamespace(lost=True)), WaitCondition)
    assert healthy._set
    assert queue.ask(healthy).work == (entry,)
    queue.close()
    assert queue.queue.take(dead) is None


def test_failed_take_wakes_another_consumer():
    """A defect ends the instance, not the requests."""
    queue, healthy, broken = QueueBench(4), BlockingConsumer(), BlockingConsumer()
    assert isinstance(queue.ask(healthy), WaitCondition)
    assert isinstance(queue.ask(broken), WaitCondition)
    entry = _entry()
    queue.offer(entry)

    class Broken:
        @property
        def lost(self):
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        queue.queue.take(broken, 0, Broken())
    assert healthy._set
    assert queue.ask(healthy).work == (entry,)


# Results without a call


class Ending(IndependentRequests):
    """A schedule that ends each request with a response, once it is added or drained."""

    def __init__(self):
        super().__init__(merge=False)
        self.ended = []

    @property
    def has_ended(self):
        return bool(self.ended)

    def add(self, entry, **settings):
        super().add(entry, **settings)
        self.ended.append(entry)
        if entry.priority < 0:
            raise ValueError("refused")

    def remove(self, entry):
        self.ended.append(entry)
        return super().remove(entry)

    def drain(self):
        self.ended += (drained := super().drain())
        return drained

    def take_ended(self):
        ended, self.ended = self.ended, []
        return lambda: [(entry, RESPONSE) for entry in ended]


def test_results_without_a_call_are_delivered_without_the_lock():
    """After each change that may end requests, also one that is refused."""
    delivered = []

    def deliver(results):
        assert not queue.lock.locked()
        delivered.append([entry for entry, _ in results])

    schedule = Ending()
    queue = RequestQueue(
        ManualClock(), schedule, model="m", in_flight_max=8, queue_rows_max=8, deliver_results=deliver
    )
    first, second, third, refused = _entry(), _entry(), _entry(), _entry(priority=-1)
    queue.put(first, first.callback.future)
    queue.offer(second)
    queue.put(third, third.callback.future)
    for accept in (queue.offer, lambda entry: queue.put(entry, entry.callback.future)):
        with pytest.raises(ValueError, match="refused"):
            accept(refused)
    assert delivered == [[first], [second], [third], [refused], [refused]]
    del delivered[:]
    queue.withdraw(second)
    queue.abandon(first.callback.future)
    third.callback.future.cancel()
    assert delivered == [[second], [first], [third]]
    del delivered[:]
    assert queue.drop() == [refused, refused]
    queue.deliver_ended()
    assert delivered == [[refused, refused]]


# Closing


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
    assert (queue.queue.closed, queue.queue.dropped) == (True, False)
    for accept in (queue.put, queue.offer):
        with pytest.raises(StoppedError):
            accept(_entry())
    assert queue.take() is entry
    assert queue.take() is None


def test_close_fails_blocked_put():
    queue = QueueBench(1)
    queue.put(_entry())
    errors = []

    def late():
        try:
            queue.put(_entry())
        except StoppedError as error:
            errors.append(error)

    waiting = threading.Thread(target=late, daemon=True)
    waiting.start()
    queue.close()
    waiting.join(WAIT_S)
    assert len(errors) == 1


def test_drop_returns_waiting_requests():
    """For the owner to fail. A concurrent cancellation is harmless."""
    queue, entry = QueueBench(2), _entry()
    queue.put(entry)
    assert queue.drop() == [entry]
    assert (queue.queue.closed, queue.queue.dropped) == (True, True)
    assert queue.take() is None
    entry.callback.future.cancel()
    assert not entry.callback.future.set_running_or_notify_cancel()


def test_drop_races_with_offer():
    """A drop closes in the same step: a request added later would never end."""
    for _ in range(levels.by_level(10, 50, 500)):
        queue = QueueBench(queue_rows_max=10**6, merge=True)
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
        assert queue.waits == 0
        over.set()
        thread.join(WAIT_S)
        assert len(dropped) == len(offered)


@pytest.mark.parametrize("end", ["close", "drop"])
@pytest.mark.parametrize("merge", [True, False])
def test_no_request_is_lost_under_stress(end, merge):
    """Consumers, puts, offers and withdrawals at once, closed at some moment.

    Every accepted request ends exactly once, and every thread ends.
    """
    for seed in range(levels.by_level(2, 4, 40)):
        _stress(random.Random(seed), end, merge=merge)


def _stress(chance: random.Random, end: str, *, merge: bool) -> None:
    bench = QueueBench(5, queue_rows_max=16, clock=SystemClock(), merge=merge, rows_max=4, delay_s=0.0005)
    queue = bench.queue
    entered: list[PendingRequest] = []
    ends: list[tuple[str, PendingRequest]] = []
    most_waiting = [0]

    def taking():
        consumer = BlockingConsumer()
        while (batch := bench.take_batch(consumer)) is not None:
            assert batch.rows == sum(t.rows for t in batch.work)
            assert batch.rows <= 4 or len(batch.work) == 1
            most_waiting[0] = max(most_waiting[0], len(queue._entries_by_future))
            for entry in batch.work:
                if entry.callback.start():
                    ends.append(("taken", entry))
                    entry.callback.complete(RESPONSE)
            bench.end(batch)

    def putting(seed):
        mine = random.Random(seed)
        for _ in range(60):
            entry = _entry(mine.randrange(1, 6))
            try:
                bench.put(entry)
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


# Removed instances


def test_draining_instance_takes_nothing_and_leaves_the_work_to_others():
    bench = QueueBench()
    sent = bench.put(pending_request(request()))
    bench.queue.drain_instance(1)
    assert bench.queue.take(BlockingConsumer(), 1) is None
    assert bench.queue.take(BlockingConsumer(), 0).work == (sent,)


def test_instance_is_kept_until_it_has_taken_its_last_batch():
    bench = QueueBench()
    bench.put(pending_request(request()))
    bench.queue.drain_instance(1)
    assert bench.queue.keep_instance(1)
    bench.queue.drain_instance(1)
    assert bench.queue.take(BlockingConsumer(), 1) is None
    assert not bench.queue.keep_instance(1)
    bench.queue.add_instance(1)
    assert bench.queue.take(BlockingConsumer(), 1).rows == 1


def test_waiting_instance_is_woken_to_drain():
    bench = QueueBench()
    taken = []
    taking = threading.Thread(target=lambda: taken.append(bench.queue.take(BlockingConsumer(), 1)))
    taking.start()
    bench.queue.drain_instance(1)
    taking.join(WAIT_S)
    assert taken == [None]
