"""The step queue of one instance: its wake-ups and its batches."""

import pytest

from batching.sequence_reference import Item
from headrace.batching.adaptive import WaitCondition
from headrace.batching.live_sequence import LiveSequence
from headrace.core.sequence import SequenceEnd
from headrace.engine.stepper import SequenceEnding
from headrace.engine.steps.instance_step_queue import InstanceStepQueue

ENDING = SequenceEnding(1, "a", 3, SequenceEnd.IDLE)


class Consumer:
    def __init__(self):
        self.woken = 0

    def wake(self):
        self.woken += 1


def sequence(name, *, arrived_s=0.0, again=False):
    """Return a sequence whose next step is ready."""
    made = LiveSequence(name, 1, 0, 0.0)
    made.current = Item(name, rows=2)
    made.current.again = again
    made.arrived_s = arrived_s
    return made


@pytest.fixture
def queue():
    made = InstanceStepQueue()
    made.resize(rows_max=2, delay_s=1.0)
    return made


def ids(batch):
    return [item.id for item in batch.items]


def test_lone_step_does_not_wait(queue):
    for name in "abc":
        queue.add(sequence(name))
    assert queue.is_full
    assert ids(queue.next(0.0, flush=False)) == ["a", "b"]
    assert not queue.is_full
    assert ids(queue.next(0.0, flush=True)) == ["c"]
    assert queue.next(0.0, flush=True) == WaitCondition()


@pytest.mark.parametrize("goes_on", [False, True])
def test_rescheduled_step_skips_co_batching_wait(queue, goes_on):
    for name in "ab":
        queue.add(sequence(name))
    queue.take(queue.next(0.0, flush=False))
    queue.mark_awake()
    queue.call_ended(0.5)
    queue.add(sequence("a", arrived_s=0.5, again=goes_on))
    found = queue.next(0.5, flush=False)
    assert ids(found) == ["a"] if goes_on else found == WaitCondition(1.5, 2, 2)


def test_only_full_call_is_taken_ahead(queue):
    queue.add(sequence("a"))
    assert queue.next_full(0.0) is None
    queue.add(sequence("b"))
    assert ids(queue.next_full(0.0)) == ["a", "b"]
    assert len(queue) == 0


def test_sleeping_consumer_is_woken_once_by_its_condition(queue):
    consumer = Consumer()
    queue.sleep(consumer, WaitCondition(9.0, rows=2, requests=2))
    queue.add(sequence("a"))
    assert (consumer.woken, queue.is_asleep) == (0, True)
    queue.add(sequence("b"))
    queue.add(sequence("c"))
    assert (consumer.woken, queue.is_asleep) == (1, False)


@pytest.mark.parametrize("does", [lambda p: p.add(sequence("a", again=True)), lambda p: p.add_ending(ENDING)])
def test_urgent_work_wakes_consumer_at_once(queue, does):
    consumer = Consumer()
    queue.sleep(consumer, WaitCondition(9.0, rows=2, requests=2))
    does(queue)
    assert consumer.woken == 1


def test_each_ending_is_taken_once(queue):
    queue.add_ending(ENDING)
    assert queue.take(None) == (ENDING,)
    assert queue.take(None) == ()
    assert queue.running == 0


def test_taken_steps_stay_running(queue):
    for name in "ab":
        queue.add(sequence(name, arrived_s=3.0))
    assert queue.oldest_s == 3.0
    queue.take(queue.next(3.0, flush=False))
    assert (queue.running, len(queue), queue.oldest_s) == (2, 0, None)
