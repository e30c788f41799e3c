"""The steps and the states of one instance, as the schedule of its sequences and their store learn of them.

A state is loaded from its checkpoint before a step and saved after it, before the result is delivered.
So a sequence continues from its last completed step anywhere: in a restarted instance, or in another
process with the same store. Checkpoints of sequences that end with a step are deleted here; of those
that end without a step, by `headrace.engine.sequences.sequence_store.PendingStateDeletes`.
"""

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from random import SystemRandom
from typing import Final, NamedTuple

from headrace.checkpoints.store import CheckpointStore, SequenceCheckpoint
from headrace.core.clock import Clock
from headrace.core.errors import UnavailableError
from headrace.core.sequence import SequenceEnd
from headrace.engine.sequences.row_request import RowRequest, StepItem, StepSequence
from headrace.engine.sequences.sequence_schedule import SequenceSchedule
from headrace.engine.sequences.sequence_store import PendingStateDeletes
from headrace.engine.stepper import SequenceEnding

PURGE_S: Final = 60.0
"""Seconds between two purges of idle checkpoints."""
PURGED_MAX: Final = 1000
"""Limit of checkpoints per purge."""
_STEPS_BITS: Final = 32
_DRAWN_BITS: Final = 31
_RESUMABLE_ENDS: Final = frozenset({SequenceEnd.STOPPED, SequenceEnd.EVICTED, SequenceEnd.INSTANCE_LOST})
"""Ends after which a sequence may be resumed from its checkpoint."""

_log = logging.getLogger("headrace.engine")


class InstanceSteps:
    """The changes that one instance makes to the schedule of its sequences.

    Each method takes the lock of the queue. Those that end requests deliver their results, except
    `end_steps`: its caller delivers them with the results of the steps.
    """

    def __init__(self, schedule: SequenceSchedule, instance: int) -> None:
        self._schedule = schedule
        self._instance = instance
        self._table = schedule.table
        self._ready = schedule.ready[instance]
        self._endings = schedule.endings[instance]
        self._lock = schedule.lock
        self._now = schedule.clock.now

    def end_steps(self, outcomes: Sequence[StepItem]) -> None:
        """End the steps that were taken, and set `done` of each outcome.

        Missing states were handled before (`state_loaded`, `state_missing`).
        """
        with self._lock:
            now = self._now()
            for o in outcomes:
                o.done = self._table.end_step(
                    o.sequence,
                    now,
                    state_changed=o.state_changed,
                    reschedule=o.rescheduled,
                    end_sequence=o.ends,
                    finish_request=o.finished,
                    hold=o.held,
                    redo=o.undone,
                    withdraw_request=o.withdrawn,
                )
            self._end_taken(len(outcomes), now)
            self._schedule.collect_ended()

    def _end_taken(self, count: int, now: float) -> None:
        self._ready.end(count, count, now)
        # A removed instance that waits for late steps moves their sequences, or ends.
        self._ready.wake_all()

    def state_loaded(self, sequence: StepSequence, steps: int) -> None:
        """Record that the state of a sequence is loaded, for the step that was taken."""
        with self._lock:
            self._table.state_loaded(sequence, steps)

    def state_missing(self, sequence: StepSequence) -> bool:
        """Handle a step whose state could not be loaded. Return True if the sequence restarts.

        If it does not, its requests end.
        """
        with self._lock:
            now = self._now()
            starts_sequence = self._table.state_missing(sequence, now)
            if not starts_sequence:
                self._end_taken(1, now)
                self._schedule.collect_ended()
        self._schedule.deliver_ended()
        return starts_sequence

    def unload_state(self, sequence: StepSequence) -> None:
        """Mark the state of a sequence to be loaded before its next step."""
        with self._lock:
            self._table.unload_state(sequence)

    def return_endings(self, endings: Sequence[SequenceEnding]) -> None:
        """Return endings that were not reported to the model, for the restarted instance."""
        with self._lock:
            self._endings[:0] = endings

    def state_corrupted(self, taken: Sequence[StepSequence], others: Sequence[StepSequence]) -> None:
        """End the sequences whose states are unknown, and the taken steps without a result."""
        with self._lock:
            now = self._now()
            for sequence in others:
                self._table.state_corrupted(sequence, now, stepping=False)
            for sequence in taken:
                if self._table.state_corrupted(sequence, now, stepping=True):
                    self._end_taken(1, now)
            self._schedule.collect_ended()
        self._schedule.deliver_ended()

    # Deaths of the instance

    def instance_lost(self, stepping: Sequence[StepSequence], exhausted: Sequence[RowRequest]) -> None:
        """Record the death of the instance during these steps.

        Row requests that are `exhausted` end.
        """
        with self._lock:
            self._ready.forget_running()
            # The instance takes no steps, and no endings are reported, until it is restarted.
            self._table.set_available(self._instance, available=False)
            now = self._now()
            self._table.instance_lost(self._instance, stepping, now)
            for row_request in exhausted:
                if row_request.sequence is not None:
                    self._table.withdraw(row_request.sequence, row_request, now)
            self._schedule.collect_ended()
        self._schedule.deliver_ended()

    def instance_restarted(self) -> None:
        """Record the restart of the instance."""
        with self._lock:
            self._table.set_available(self._instance, available=True)

    def retire_instance(self) -> None:
        """Record that the instance is given up."""
        with self._lock:
            self._ready.forget_running()
            self._table.retire_instance(self._instance, self._now())
            self._schedule.collect_ended()
            self._endings.clear()
        self._schedule.deliver_ended()


class _Mark(NamedTuple):
    """The mark of a sequence's last checkpoint."""

    random_part: int
    """The random part of its next mark."""
    last: int
    previous: int
    """The mark in the store if `last` was not saved; equal to `last` once that is known to be
    saved.
    """


class StateLoader:
    """The states of one instance's sequences in a store.

    `fetch`, `save` and `delete_ended` call the store and block; one thread calls them. No two
    threads pass steps of one sequence.

    The store distinguishes checkpoints by a mark: the steps of the sequence and a random number,
    drawn anew when a sequence starts and when its state is loaded. A process with an outdated state
    of a sequence notices this by the mark, even if the newer state has the same number of steps.
    """

    def __init__(
        self,
        store: CheckpointStore,
        state_deletes: PendingStateDeletes,
        steps: InstanceSteps,
        clock: Clock,
        *,
        idle_ms: float,
    ) -> None:
        self._store = store
        self._state_deletes = state_deletes
        self._steps = steps
        self._clock = clock
        self._idle_ms = idle_ms
        self._marks: dict[int, _Mark] = {}
        """Marks of the sequences that have one and have not ended, by sequence number."""
        self._draw_random = partial(SystemRandom().randrange, 1, 1 << _DRAWN_BITS)
        self._last_purge_s = clock.now()

    def missing(self, items: Sequence[StepItem]) -> list[StepItem]:
        """Return the steps whose states must be fetched."""
        return [o for o in items if not o.sequence.loaded and not o.row_request.fetched]

    def fetch(self, items: Sequence[StepItem]) -> None:
        """Fetch the states of these steps for `load`, also if they are taken again.

        Raises UnavailableError; then nothing has changed.
        """
        found = self._store.load([o.sequence.qualified_id for o in items], idle_ms_max=self._idle_ms)
        for item, checkpoint in zip(items, found, strict=True):
            item.row_request.fetched = (checkpoint,)

    def load(self, items: Sequence[StepItem]) -> list[StepItem]:
        """Load the fetched states of these steps. Return the steps whose sequences can continue.

        A step that has failed is returned, too.
        """
        for item in items:
            item.save = not item.sequence.anonymous
        return [o for o in items if o.error is not None or o.sequence.loaded or self._load_one(o)]

    def _load_one(self, item: StepItem) -> bool:
        sequence = item.sequence
        (checkpoint,), item.row_request.fetched = item.row_request.fetched, ()
        known = self._marks.get(sequence.number)
        if checkpoint is None or (known is None and self._state_deletes.pending(sequence.qualified_id)):
            if not self._steps.state_missing(sequence):
                return False
            self._marks.pop(sequence.number, None)
            item.restore = b""
            return True
        mark, state = checkpoint
        steps = mark & ((1 << _STEPS_BITS) - 1)
        is_same = steps == sequence.steps if known is None else mark in known[1:]
        # Another process did steps since this request's first ones, which were based on a lost
        # state.
        if sequence.request_started and not is_same and not self._steps.state_missing(sequence):
            return False
        self._marks[sequence.number] = _Mark(self._draw_random(), mark, mark)
        self._steps.state_loaded(sequence, steps)
        item.restore = state
        return True

    def unsaved(self, items: Sequence[StepItem]) -> list[StepItem]:
        """Return the steps whose states must be saved."""
        for item in items:
            if item.restore and not item.outputs:
                # The failed step also undid the load of its state.
                self._steps.unload_state(item.sequence)
        return [o for o in items if o.checkpoint is not None and o.state_changed]

    def save(self, items: Sequence[StepItem]) -> None:
        """Save the states after these steps.

        A step that was done on an outdated state becomes `undone`.

        The checkpoint of a sequence that ended with its step is saved, then deleted: the save
        proves that no other process has continued the sequence. If the store is unavailable, the
        step fails, and its state is loaded again before the next step.
        """
        self._purge_sometimes()
        try:
            kept = self._save(items)
        except UnavailableError as error:
            self._fail(items, error)
            return
        try:
            self._delete_last([o for o in kept if o.is_last])
        except UnavailableError as error:
            self._fail([o for o in kept if o.is_last], error)

    def _save(self, items: Sequence[StepItem]) -> list[StepItem]:
        """Save the steps of sequences that have not ended. Return the steps that count."""
        first = any(o.sequence.number not in self._marks for o in items)
        with self._state_deletes.first_saves if first else nullcontext():
            saved = [o for o in items if o.sequence.end_reason is None]
            if not saved:
                return []
            kept = self._store.save([self._checkpoint(o) for o in saved])
        for item, is_kept in zip(saved, kept, strict=True):
            if is_kept:
                number = item.sequence.number
                mark = self._marks[number]
                self._marks[number] = mark._replace(previous=mark.last)
            else:
                self._steps.unload_state(item.sequence)
                item.undo()
        return [o for o, is_kept in zip(saved, kept, strict=True) if is_kept]

    def _delete_last(self, items: Sequence[StepItem]) -> None:
        if not items:
            return
        numbers = [o.sequence.number for o in items]
        self._store.delete([o.sequence.qualified_id for o in items], [self._marks[n].last for n in numbers])
        for number in numbers:
            del self._marks[number]

    def _fail(self, items: Sequence[StepItem], error: UnavailableError) -> None:
        for item in items:
            self._steps.unload_state(item.sequence)
            item.withdraw(error)

    def _checkpoint(self, item: StepItem) -> SequenceCheckpoint:
        sequence = item.sequence
        known = self._marks.get(sequence.number)
        random_part, previous = (self._draw_random(), 0) if known is None else (known.random_part, known.last)
        assert item.checkpoint is not None
        mark = random_part << _STEPS_BITS | (sequence.steps + 1)
        self._marks[sequence.number] = _Mark(random_part, mark, previous)
        return SequenceCheckpoint(sequence.qualified_id, mark, item.checkpoint, previous)

    def has_checkpoint(self, endings: Sequence[SequenceEnding]) -> bool:
        """Return True if an ended sequence has a checkpoint that this instance has saved or loaded."""
        return any(ending.number in self._marks for ending in endings)

    def delete_ended(self, endings: Sequence[SequenceEnding]) -> None:
        """Delete the checkpoints of ended sequences, unless they may be resumed elsewhere.

        If the store is unavailable, the checkpoints expire later.
        """
        closed: list[tuple[str, int]] = []
        for ending in endings:
            known = self._marks.pop(ending.number, None)
            if known is not None and ending.reason not in _RESUMABLE_ENDS:
                closed.append((ending.id, known.last))
        if not closed:
            return
        try:
            self._store.delete([id for id, _ in closed], [mark for _, mark in closed])
        except UnavailableError as error:
            _log.warning("checkpoints of sequences that have ended were not deleted: %s", error)

    def _purge_sometimes(self) -> None:
        """Delete idle checkpoints, once every PURGE_S."""
        now = self._clock.now()
        if now - self._last_purge_s < PURGE_S:
            return
        self._last_purge_s = now
        try:
            if self._store.purge(idle_ms_max=self._idle_ms, count_max=PURGED_MAX) == PURGED_MAX:
                # More may be left: evicted sequences whose clients have left.
                self._last_purge_s = now - PURGE_S
        except UnavailableError as error:
            _log.warning("idle checkpoints were not deleted: %s", error)
