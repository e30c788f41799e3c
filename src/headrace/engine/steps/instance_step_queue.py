"""The step queue of one instance: the sequences that are ready for a step there, and its sleep.

Passive: guarded by the lock of the `StepQueue`.
"""

from headrace.batching.adaptive import AdaptiveBatch, AdaptiveBatcher, WaitCondition
from headrace.engine.batch_queue import QueueConsumer
from headrace.engine.stepper import SequenceEnding
from headrace.engine.steps.step_work import StepSequence


class InstanceStepQueue:
    """The sequences of one instance that are ready for a step, in batches."""

    def __init__(self) -> None:
        self._batcher = AdaptiveBatcher[StepSequence](rows_max=1, delay_s=0.0)
        self._consumer: QueueConsumer | None = None
        """The sleeping consumer; None while it is awake."""
        self._wait_condition = WaitCondition()
        """The condition on which the sleeping consumer is woken."""
        self._idle_since_s: float | None = None
        self._flush_next = False
        """True if a started request waits for its next step: it does not wait for co-batching."""
        self._rows_max = 1
        self.endings: list[SequenceEnding] = []
        """Ended sequences that the model is to be told of."""
        self.running = 0
        """Number of steps that were taken and are not committed."""

    def __len__(self) -> int:
        """Return the number of waiting steps."""
        return len(self._batcher)

    @property
    def is_full(self) -> bool:
        """True if the waiting steps fill a call. May be read without the lock."""
        return len(self._batcher) >= self._rows_max

    @property
    def oldest_s(self) -> float | None:
        """Arrival time of the oldest waiting step; None if no step waits."""
        return self._batcher.oldest_arrival_s()

    @property
    def is_asleep(self) -> bool:
        """True while the instance waits to be woken."""
        return self._consumer is not None

    def resize(self, *, rows_max: int, delay_s: float) -> None:
        """Set the limit of rows per call and the co-batching delay."""
        self._rows_max = rows_max
        self._batcher.resize(rows_max=rows_max, delay_s=delay_s)

    def add(self, sequence: StepSequence) -> None:
        """Add a sequence whose next step is ready."""
        self._batcher.add(sequence)
        self._flush_next = self._flush_next or sequence.request_started
        self.wake()

    def remove(self, sequence: StepSequence) -> None:
        """Remove a sequence whose next step is no longer ready."""
        self._batcher.remove(sequence)

    def add_ending(self, ending: SequenceEnding) -> None:
        """Report an ended sequence to the model, at once."""
        self.endings.append(ending)
        self.wake(always=True)

    def next(self, now: float, *, flush: bool) -> AdaptiveBatch[StepSequence] | WaitCondition:
        """Return the next batch for the idle instance, or the condition to wait for."""
        if self._idle_since_s is None:
            self._idle_since_s = now
        return self._batcher.next(
            running_rows=0,
            running=0,
            idle_since_s=self._idle_since_s,
            now=now,
            flush=flush or self._flush_next,
        )

    def next_full(self, now: float) -> AdaptiveBatch[StepSequence] | None:
        """Return the next batch if it fills a call already."""
        if not self.is_full:
            return None
        found = self._batcher.next(running_rows=0, running=0, idle_since_s=now, now=now, flush=True)
        return found if isinstance(found, AdaptiveBatch) else None

    def take(self, batch: AdaptiveBatch[StepSequence] | None) -> tuple[SequenceEnding, ...]:
        """Record that the instance took these steps, and return the endings to report to the model."""
        endings, self.endings = tuple(self.endings), []
        if batch is not None:
            self.running += len(batch.items)
            self._flush_next = self._flush_next and bool(len(self._batcher))
        return endings

    def call_ended(self, now: float) -> None:
        """Record the end of a call."""
        self._batcher.batch_ended(now)

    # Sleep

    def sleep(self, consumer: QueueConsumer, condition: WaitCondition) -> None:
        """Record that the instance sleeps until the condition holds."""
        self._consumer, self._wait_condition = consumer, condition

    def mark_awake(self) -> None:
        """Record that the instance is awake."""
        self._consumer = self._idle_since_s = None

    def wake(self, *, always: bool = False) -> None:
        """Wake the instance if its condition holds, or `always`."""
        consumer, condition, waiting = self._consumer, self._wait_condition, len(self._batcher)
        if consumer is None:
            return
        if always or self._flush_next or waiting >= condition.rows or waiting >= condition.requests:
            self._consumer = None
            consumer.wake()
