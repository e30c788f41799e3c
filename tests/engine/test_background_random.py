"""Background requests in any order of arrivals, calls, ends and shares: none is lost, none goes first."""

from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from engine.support import request, rows
from headrace.batching.adaptive import WaitCondition
from headrace.core.predictor import RequestTimes
from headrace.engine.background_requests import BackgroundRequests
from headrace.engine.pending_request import BACKGROUND_PRIORITY, FutureCallback, PendingRequest
from headrace.engine.request_queue import BlockingConsumer, RequestQueue
from headrace.engine.schedule import IndependentRequests
from headrace.testing import ManualClock

INSTANCES = 2
ROWS_MAX = 4
KEYS = ("a", "b", None)


@dataclass
class Sent:
    """A request of the test, and its future."""

    entry: PendingRequest
    future: Future = field(default_factory=Future)


class QueueMachine:
    """A queue that two instances take from, with the requests that are expected in it."""

    def __init__(self, share):
        self.clock = ManualClock()
        self.share = share
        self.delivered = Counter()
        self.schedule = IndependentRequests(merge=True)
        self.background = BackgroundRequests(lambda: self.share, lambda: INSTANCES)
        self.queue = RequestQueue(
            self.clock,
            self.schedule,
            model="m",
            in_flight_max=10**6,
            queue_rows_max=10**6,
            deliver_results=lambda results: self.delivered.update(id(entry) for entry, _ in results),
            background=self.background,
        )
        self.queue.resize(rows_max=ROWS_MAX, delay_s=0.0)
        self.consumers = [BlockingConsumer() for _ in range(INSTANCES)]
        self.running = [None] * INSTANCES
        self.waiting = []
        """Requests in order of arrival that were not taken, and not cancelled."""
        self.futures = {}
        self.began = Counter()

    def arrive(self, key, size, *, is_live, priority):
        """Send one request."""
        future = Future()
        entry = PendingRequest(
            request(rows(*range(size)), priority=priority),
            size,
            self.clock.now(),
            FutureCallback(future),
            key=("background", key) if key and not is_live else key,
            background=not is_live,
            times=RequestTimes(),
        )
        self.waiting.append(entry)
        self.futures[entry] = future
        if is_live:
            assert self.queue.offer(entry)
        else:
            self.queue.put(entry, future)

    def take(self, instance):
        """Let an idle instance take a batch, as `RequestQueue.take` does without a wait."""
        if self.running[instance] is not None:
            return
        with self.queue.lock:
            found = self.queue._take(self.consumers[instance], instance, self.clock.now())
        if found is None or isinstance(found, WaitCondition):
            assert not any(is_live(entry) for entry in self.waiting)
            assert self.share < 1.0 or not self.waiting
            assert found is None or not self.waiting or found.at_s <= self.clock.now() + 0.25
            return
        self.running[instance] = found
        self.check(found.work)
        for entry in found.work:
            self.waiting.remove(entry)
            self.began[entry] += 1
            assert entry.callback.start()
            entry.times.began_s = self.clock.now()

    def check(self, batch):
        """Assert that a batch is the next one: of live requests, if any waits; else in order of arrival."""
        if any(map(is_live, self.waiting)):
            assert all(map(is_live, batch))
        for entry in batch:
            equals = [
                each for each in self.waiting if (each.key, each.priority) == (entry.key, entry.priority)
            ]
            earlier = equals[: equals.index(entry)]
            assert all(each in batch for each in earlier)

    def end(self, instance):
        """End the call of an instance."""
        batch, self.running[instance] = self.running[instance], None
        if batch is None:
            return
        with self.queue.lock:
            self.schedule.end(len(batch.work), batch.rows, self.clock.now())
        for entry in batch.work:
            entry.times.ended_s = self.clock.now()
        self.queue.mark_ended(batch.work)
        for entry in batch.work:
            entry.callback.complete(RuntimeError("its result"))

    def leave(self, number, *, abandons):
        """Let the client of a waiting request leave."""
        left = [entry for entry in self.waiting if not is_live(entry)]
        if left:
            entry = left[number % len(left)]
            self.waiting.remove(entry)
            future = self.futures[entry]
            if abandons:
                assert self.queue.abandon(future) is entry
            assert future.cancel()

    def check_counts(self):
        """Assert that the queue counts exactly the requests that wait and run."""
        requests, waiting_rows, oldest_s, running = self.queue.waiting()
        now = self.clock.now()
        assert oldest_s == max((now - entry.arrived_s for entry in self.waiting), default=0.0)
        assert (requests, waiting_rows) == (len(self.waiting), sum(entry.rows for entry in self.waiting))
        assert running == sum(len(batch.work) for batch in self.running if batch is not None)
        assert not self.delivered

    def finish(self):
        """Let all calls end, with the whole time for background requests or after a close."""
        while self.waiting or any(self.running):
            for instance in range(INSTANCES):
                self.end(instance)
                self.take(instance)
        assert self.queue.waiting() == (0, 0, 0.0, 0)
        assert set(self.began.values()) <= {1}
        assert all(future.done() for future in self.futures.values())
        assert self.queue._entries_by_future == {}
        assert (self.background._units, self.background._budget.running) == ({}, 0)


def is_live(entry):
    return entry.priority < BACKGROUND_PRIORITY


SHARES = st.sampled_from((0.005, 0.3, 0.5, 0.75, 1.0))
ARRIVALS = st.tuples(
    st.just("arrive"), st.sampled_from(KEYS), st.integers(1, 6), st.booleans(), st.integers(0, 1)
)
EVENTS = st.one_of(
    ARRIVALS,
    ARRIVALS,
    st.tuples(st.just("take"), st.integers(0, INSTANCES - 1)),
    st.tuples(st.just("end"), st.integers(0, INSTANCES - 1)),
    st.tuples(st.just("pass"), st.sampled_from((0.001, 0.1, 0.25, 5.0))),
    st.tuples(st.just("share"), SHARES),
    st.tuples(st.just("leave"), st.integers(0, 20), st.booleans()),
)


@given(SHARES, st.lists(EVENTS, max_size=60), st.booleans())
def test_every_request_is_taken_once_and_live_ones_first(share, events, closes):
    machine = QueueMachine(share)
    for what, *args in events:
        if what == "arrive":
            key, size, live, priority = args
            machine.arrive(key, size, is_live=live, priority=priority)
        elif what == "pass":
            machine.clock.advance(*args)
        elif what == "share":
            (machine.share,) = args
        elif what == "leave":
            machine.leave(args[0], abandons=args[1])
        else:
            getattr(machine, what)(*args)
        machine.check_counts()
    if closes:
        machine.queue.close()
    else:
        machine.share = 1.0
    machine.finish()
