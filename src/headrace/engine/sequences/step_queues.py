"""For each instance of a model with a `step`: the steps that are ready, and the ends to report.

Passive: guarded by the lock of the `RequestQueue`.
"""

from collections.abc import Callable

from headrace.batching.sequence import SequenceTable
from headrace.core.sequence import SequenceLimits
from headrace.engine.ready_queue import ReadyQueue
from headrace.engine.request_queue import QueueConsumer
from headrace.engine.sequences.row_request import RowRequest, StepSequence, sequence_ending
from headrace.engine.stepper import SequenceEnding


class StepQueues:
    """The table of live sequences, with a queue of ready steps for each instance.

    With `merge`, steps of several requests share a call. Without, only the steps of one request do,
    without delay. `SequenceTable` describes the other arguments.
    """

    def __init__(
        self,
        limits: SequenceLimits,
        instances: int,
        *,
        merge: bool,
        checkpoints: bool,
        keeps_checkpoint: Callable[[str], bool],
    ) -> None:
        self.merge = merge
        self.table = SequenceTable[RowRequest](
            limits,
            instances,
            queue=self._queue,
            unqueue=self._unqueue,
            checkpoints=checkpoints,
            keeps_checkpoint=keeps_checkpoint,
        )
        self.ready = [ReadyQueue[StepSequence]() for _ in range(instances)]
        """The sequences of each instance that are ready for a step."""
        self.endings: list[list[SequenceEnding]] = [[] for _ in range(instances)]
        """The ended sequences to report to the model, by instance."""

    def resize(self, *, rows_max: int, delay_s: float) -> None:
        """Set the limits of a call: its rows and its co-batching delay."""
        for ready in self.ready:
            ready.resize(rows_max=rows_max, delay_s=delay_s if self.merge else 0.0)

    def is_full(self, instance: int) -> bool:
        """Return True if the ready steps of an instance fill a call. Needs no lock."""
        return self.ready[instance].fills_call

    def leave(self, consumer: QueueConsumer, instance: int) -> None:
        """Record that an instance takes nothing for now."""
        self.ready[instance].mark_awake(consumer)

    def waiting(self, now: float) -> tuple[int, int, float, int]:
        """Return the waiting requests and rows, the oldest age in seconds, and running requests."""
        running = sum(ready.running for ready in self.ready)
        oldest = [s for ready in self.ready if (s := ready.oldest_s) is not None]
        age_s = max(0.0, now - min(oldest)) if oldest else 0.0
        table = self.table
        return max(0, table.requests - running), max(0, table.rows - running), age_s, running

    def _queue(self, sequence: StepSequence) -> None:
        # A started request waits for no co-batching before its next step.
        self.ready[sequence.instance].add(sequence, flush=sequence.request_started)

    def _unqueue(self, sequence: StepSequence) -> None:
        self.ready[sequence.instance].remove(sequence)

    def wake_all(self) -> None:
        """Wake all instances."""
        for ready in self.ready:
            ready.wake_all()

    def report_ended(self) -> None:
        """Pass the ended sequences to the instances that know them."""
        ended = self.table.ended_sequences
        if not ended:
            return
        for sequence in ended:
            if sequence.instance_knows:
                self.endings[sequence.instance].append(sequence_ending(sequence))
                self.ready[sequence.instance].wake_all()
        ended.clear()
