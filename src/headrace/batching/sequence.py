"""The table of live sequences: the requests that wait for each, and when each ends.

For models with a state between requests.

Requests of a sequence run in order, one step at a time. A sequence stays on one instance, the
holder of its state, until it ends. The table is pure: the caller passes `now`, which never
decreases. Ended sequences and their requests collect in `ended_sequences` and `request_ends` until
the caller takes them.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Generic, TypeVar

from headrace.batching.instance_placement import InstancePlacement
from headrace.batching.live_sequence import LiveSequence, RequestEnd, StepRequest, is_started
from headrace.batching.sequence_ends import RecentEnds
from headrace.batching.sequence_stages import SequenceEvent, SequenceStage
from headrace.batching.sequence_timeouts import SequenceTimeouts
from headrace.core.errors import PredictorError, SequenceFullError, TooManySequencesError
from headrace.core.sequence import SequenceControl, SequenceEnd, SequenceLimits

__all__ = ["RETRY_S", "LiveSequence", "RequestEnd", "SequenceTable", "StepRequest"]

RETRY_S: Final = 1.0
"""Suggested delay before a retry, in seconds: sequences end and steps finish in about this time."""

T = TypeVar("T", bound=StepRequest)


class SequenceTable(Generic[T]):
    """The live sequences of one model, over a fixed number of instances.

    The table calls `queue` when the next step of a sequence can run on its instance. It calls
    `unqueue` when that step can no longer run, except when `begin_step` took it. `request_ends` has
    the requests that ended without a step of their own, withdrawn requests excepted.
    `ended_sequences` has the ended sequences that an instance or a checkpoint store knows. With
    `checkpoints`, a sequence outlives the instance that holds its state. An anonymous sequence
    never does. `keeps_checkpoint` returns True if the checkpoint of an id outlasts an eviction, so
    that a saved idle sequence can make place for another one.
    """

    def __init__(
        self,
        limits: SequenceLimits,
        instances: int,
        *,
        queue: Callable[[LiveSequence[T]], None],
        unqueue: Callable[[LiveSequence[T]], None],
        checkpoints: bool = False,
        keeps_checkpoint: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.limits = limits
        self._queue = queue
        self._unqueue = unqueue
        self._checkpoints = checkpoints
        self._keeps_checkpoint = keeps_checkpoint
        self._by_id: dict[str, LiveSequence[T]] = {}
        self._live: dict[int, LiveSequence[T]] = {}
        self._timeouts = SequenceTimeouts[T](limits)
        self._placement = InstancePlacement(instances)
        self._recent = RecentEnds()
        self._numbers = 0
        self.requests = 0
        """Number of open requests."""
        self.rows = 0
        """Number of rows of the open requests."""
        self.request_ends: list[RequestEnd[T]] = []
        self.ended_sequences: list[LiveSequence[T]] = []
        self.end_counts: dict[SequenceEnd, int] = dict.fromkeys(SequenceEnd, 0)

    def __len__(self) -> int:
        """Return the number of live sequences."""
        return len(self._live)

    def __iter__(self) -> Iterator[LiveSequence[T]]:
        """Iterate over the live sequences, oldest first."""
        return iter(self._live.values())

    def find(self, id: str) -> LiveSequence[T] | None:
        """Return the live sequence with this id, or None."""
        return self._by_id.get(id)

    # Requests

    def offer(self, item: T, control: SequenceControl, now: float) -> LiveSequence[T]:
        """Add a request to its sequence. Create the sequence if `control` says so.

        A live sequence with the same id then ends at once. If its last request ends it, that
        request finishes first.

        Raises:
            SequenceGoneError: No sequence has this id.
            SequenceLostError: The sequence ended because its state was lost.
            StoppedError: The sequence ended because the model was stopped.
            SequenceFullError: Too many requests of this sequence wait.
            TooManySequencesError: Too many sequences are live, and none can make place.

        After an error, nothing has changed, except for sequences that expired by `now`.
        """
        self.expire(now)
        sequence = self._by_id.get(control.id) if control.id and not control.start else None
        if sequence is None:
            sequence = self._create(control, now)
        elif len(sequence.waiting) >= self.limits.requests_max:
            raise SequenceFullError(
                control.id,
                f"{len(sequence.waiting)} requests are waiting, the limit of requests_max: retry later",
                retry_after_s=RETRY_S,
            )
        self.requests += 1
        self.rows += item.rows
        sequence.waiting.append(item)
        if sequence.current is not None:
            sequence.auto_restart = sequence.auto_restart and control.auto
            sequence.apply(SequenceEvent.REQUEST)
            return sequence
        sequence.auto_restart = control.auto
        if self._advance(sequence, now):
            self._timeouts.mark_active(sequence)
            sequence.apply(SequenceEvent.REQUEST)
            self._enqueue(sequence, now)
        elif sequence.end_reason is None:
            self._timeouts.mark_idle(sequence, now)
        return sequence

    def withdraw(self, sequence: LiveSequence[T], item: T, now: float) -> None:
        """Remove a request that its client no longer wants.

        A running step of the request finishes first.

        Finished steps stay done. A request that ends its sequence does so only by its last step. An
        anonymous sequence ends.
        """
        if sequence.end_reason is not None:
            return
        if sequence.anonymous:
            self._end(sequence, SequenceEnd.CANCELLED, now)
            return
        if item is not sequence.current:
            if item in sequence.waiting:
                sequence.waiting.remove(item)
                self._finish_request(sequence, item)
            return
        if sequence.stage is SequenceStage.STEPPING:
            sequence.abandoned = True
            return
        if sequence.stage is SequenceStage.WAITING:
            self._unqueue(sequence)
        self._finish_request(sequence, item)
        if self._advance(sequence, now):
            if sequence.stage is SequenceStage.HELD:
                sequence.apply(SequenceEvent.OUTPUT_READ)
            self._enqueue(sequence, now)
        elif sequence.end_reason is None and not self._end_if_replaced(sequence, now):
            sequence.apply(SequenceEvent.WITHDRAWN)
            self._timeouts.mark_idle(sequence, now)

    # Steps

    def begin_step(self, sequence: LiveSequence[T]) -> T:
        """Record that a model call has taken the next step of this sequence.

        Return the request of that step.
        """
        sequence.apply(SequenceEvent.STEP_BEGUN)
        if sequence.loaded:
            sequence.instance_knows = True
        assert sequence.current is not None
        return sequence.current

    def end_step(
        self,
        sequence: LiveSequence[T],
        now: float,
        *,
        state_changed: bool = True,
        reschedule: bool = False,
        end_sequence: bool = False,
        finish_request: bool = False,
        hold: bool = False,
        redo: bool = False,
        withdraw_request: bool = False,
    ) -> bool:
        """Record the end of the running step. Return True if its request ended by this step.

        - `state_changed`: the step changed the state.
        - `reschedule`: the model asked for another step with the same row.
        - `end_sequence`: the model ended the sequence.
        - `finish_request`: the request is over, whatever rows are left.
        - `hold`: the next step must not run before `resume`.
        - `redo`: the step ran on an outdated state; run it again on the latest state.
        - `withdraw_request`: the request is over and may be sent again. It does not end the
          sequence.
        """
        sequence.steps += state_changed
        if sequence.stage is SequenceStage.ENDING:
            self._finish_ending(sequence)
            return False
        item = sequence.current
        assert item is not None
        if redo and not sequence.abandoned:
            sequence.apply(SequenceEvent.STEP_DUE)
            self._enqueue(sequence, now)
            return False
        item.again = reschedule and not end_sequence
        if not item.again:
            item.row += 1
        last = (finish_request or item.row >= item.rows) and not withdraw_request
        if not (last or end_sequence or sequence.abandoned or withdraw_request):
            if hold:
                sequence.apply(SequenceEvent.OUTPUT_FULL)
            else:
                self._interleave(sequence)
                sequence.apply(SequenceEvent.STEP_DUE)
                self._enqueue(sequence, now)
            return False
        self._finish_request(sequence, item)
        if end_sequence or sequence.anonymous or (last and item.ends):
            self._end(sequence, SequenceEnd.ENDED, now)
        elif self._advance(sequence, now):
            sequence.apply(SequenceEvent.STEP_DUE)
            self._enqueue(sequence, now)
            return True
        if sequence.end_reason is not None or self._end_if_replaced(sequence, now):
            self._finish_ending(sequence)
        else:
            sequence.apply(SequenceEvent.STEP_DONE)
            self._timeouts.mark_idle(sequence, now)
        return True

    def resume(self, sequence: LiveSequence[T], now: float) -> None:
        """Let a held sequence continue: the client has read its output.

        Do nothing for other sequences.
        """
        if sequence.stage is SequenceStage.HELD:
            self._interleave(sequence)
            sequence.apply(SequenceEvent.OUTPUT_READ)
            self._enqueue(sequence, now)

    # Ends

    def cancel(self, id: str, now: float) -> bool:
        """End the sequence with this id, with all its waiting requests. Return True if it was live."""
        self.expire(now)
        sequence = self._by_id.get(id)
        if sequence is not None:
            self._end(sequence, SequenceEnd.CANCELLED, now)
        return sequence is not None

    def expire(self, now: float) -> None:
        """End the sequences whose idle time or lifetime is over."""
        while (expired := self._timeouts.next_expired(now)) is not None:
            sequence, reason = expired
            self._end(sequence, reason, now)

    def next_expiry_s(self) -> float | None:
        """Return the time at which `expire` has work to do, as of now, or None for never."""
        return self._timeouts.next_expiry_s()

    def stop(self, now: float) -> None:
        """End all sequences."""
        for sequence in list(self._live.values()):
            self._end(sequence, SequenceEnd.STOPPED, now)

    # Instances

    def state_loaded(self, sequence: LiveSequence[T], steps: int) -> None:
        """Record that the state after `steps` steps is now on the sequence's instance."""
        sequence.instance_knows = sequence.loaded = True
        sequence.state_lost = False
        sequence.steps, sequence.has_final_steps = steps, steps > 0

    def state_missing(self, sequence: LiveSequence[T], now: float) -> bool:
        """Handle a step whose state could not be loaded.

        Return True if the sequence restarts with an empty state.

        Otherwise the sequence and its requests are over: lost if its state died on this server,
        ended if another process went on with it. A sequence that never had a state on this server
        leaves no trace.
        """
        if sequence.stage is SequenceStage.STEPPING:
            if sequence.auto_restart and not sequence.request_started:
                self.state_loaded(sequence, 0)
                return True
            if sequence.instance_knows:
                reason = SequenceEnd.INSTANCE_LOST if sequence.state_lost else SequenceEnd.ENDED
                self._end(sequence, reason, now)
            else:
                self._remove(sequence, lambda: self._recent.error_for(sequence.id, now))
        sequence.apply(SequenceEvent.STEP_DONE)
        if sequence.instance_knows:
            self.ended_sequences.append(sequence)
        return False

    def unload_state(self, sequence: LiveSequence[T]) -> None:
        """Mark the state on the instance as outdated: load it again before the next step."""
        sequence.loaded = False

    def instance_lost(self, instance: int, stepping: Iterable[LiveSequence[T]], now: float) -> None:
        """Handle the death of an instance, with all its states, during the steps of `stepping`.

        A sequence repeats its steps if it has a checkpoint, or if no client has received any output
        of them. Others end.
        """
        for sequence in stepping:
            sequence.apply(SequenceEvent.INSTANCE_LOST)
            if sequence.stage is SequenceStage.ENDED:
                self._report_ended(sequence)
                continue
            assert sequence.current is not None
            self._enqueue(sequence, now)
            if sequence.abandoned:
                self.withdraw(sequence, sequence.current, now)
        for sequence in self._on_instance(instance):
            if self._detach_state(sequence):
                continue
            if sequence.rewind():
                # The discarded output no longer fills the client's buffer.
                self.resume(sequence, now)
            else:
                self._end(sequence, SequenceEnd.INSTANCE_LOST, now)

    def set_available(self, instance: int, *, available: bool) -> None:
        """Mark an instance as available for new sequences, or not while there is another one."""
        self._placement.set_available(instance, available=available)

    def retire_instance(self, instance: int, now: float) -> None:
        """Move sequences away from an instance that runs no more steps until `set_available`.

        Sequences without a state there, or with a checkpoint, move to the instance of a new
        sequence. Others end; a running step finishes first.
        """
        self._placement.retire(instance)
        moving: list[LiveSequence[T]] = []
        for sequence in self._on_instance(instance):
            if sequence.stage is not SequenceStage.STEPPING and self._detach_state(sequence):
                moving.append(sequence)
            else:
                self._end(sequence, SequenceEnd.INSTANCE_LOST, now)
        # Placement chooses the instance with the fewest sequences, so count the ended ones first.
        for sequence in moving:
            self._move(sequence)

    def _on_instance(self, instance: int) -> list[LiveSequence[T]]:
        return [s for s in self._live.values() if s.instance == instance]

    def _detach_state(self, sequence: LiveSequence[T]) -> bool:
        """Give up the state on the instance.

        Return False if the sequence cannot continue without it.
        """
        if not sequence.steps:
            return True
        if not self._checkpoints or sequence.anonymous:
            return False
        sequence.state_lost = sequence.state_lost or sequence.loaded
        sequence.loaded = False
        return True

    def _move(self, sequence: LiveSequence[T]) -> None:
        waits = sequence.stage is SequenceStage.WAITING
        if waits:
            self._unqueue(sequence)
        self._placement.release(sequence.instance)
        sequence.instance = self._placement.assign()
        if waits:
            self._queue(sequence)

    def state_corrupted(self, sequence: LiveSequence[T], now: float, *, stepping: bool) -> bool:
        """End a sequence whose state is unknown after a defect, with its requests.

        `stepping`: one of its steps was taken. Return True if that step ends by this call.
        """
        if sequence.number in self._live:
            self._end(sequence, SequenceEnd.INSTANCE_LOST, now)
        if not stepping or sequence.stage is not SequenceStage.ENDING:
            return False
        self._finish_ending(sequence)
        return True

    # Internals

    def _create(self, control: SequenceControl, now: float) -> LiveSequence[T]:
        """Create a live sequence: a new one, or one whose state a checkpoint store has."""
        resumes = bool(control.id) and not control.start
        if (
            control.start
            and (old := self._by_id.get(control.id)) is not None
            and not self._ends_with_last_request(old)
        ):
            self._end(old, SequenceEnd.RESTARTED, now)
        if resumes and not control.auto and not self._checkpoints:
            raise self._recent.error_for(control.id, now)
        self._evict_if_full(control.id, now)
        self._numbers += 1
        # LiveSequence[T](...) would cost as much as the rest of this method.
        sequence: LiveSequence[T] = LiveSequence(control.id, self._numbers, self._placement.assign(), now)
        sequence.loaded = not (resumes and self._checkpoints)
        self._live[sequence.number] = sequence
        if control.id:
            self._by_id[control.id] = sequence
        self._timeouts.add(sequence)
        return sequence

    def _ends_with_last_request(self, sequence: LiveSequence[T]) -> bool:
        """Return True if a request that ends the sequence is queued.

        A new sequence may then take over its id.

        False with checkpoints, because a checkpoint is stored under the id alone.
        """
        last = sequence.waiting[-1] if sequence.waiting else sequence.current
        return last is not None and last.ends and not self._checkpoints

    def _is_replaced(self, sequence: LiveSequence[T]) -> bool:
        return not sequence.anonymous and self._by_id.get(sequence.id) is not sequence

    def _end_if_replaced(self, sequence: LiveSequence[T], now: float) -> bool:
        """End a replaced sequence without requests, which no client can reach.

        Return True if this ended it.
        """
        if not self._is_replaced(sequence):
            return False
        self._end(sequence, SequenceEnd.RESTARTED, now)
        return True

    def _evict_if_full(self, id: str, now: float) -> None:
        if len(self._live) < self.limits.live_max:
            return
        idlest = self._saved_idlest() or self._timeouts.evictable(now)
        if idlest is None:
            raise TooManySequencesError(
                id,
                f"{len(self._live)} sequences are live, the limit of live_max: retry later",
                retry_after_s=RETRY_S,
            )
        self._end(idlest, SequenceEnd.EVICTED, now)

    def _saved_idlest(self) -> LiveSequence[T] | None:
        """Return the longest idle sequence that resumes from its checkpoint, or None."""
        if not self._checkpoints:
            return None
        # The state of a sequence without a step is in no store.
        return next(
            (
                sequence
                for sequence in self._timeouts.idle()
                if (sequence.steps or not sequence.loaded) and self._keeps_checkpoint(sequence.id)
            ),
            None,
        )

    def _enqueue(self, sequence: LiveSequence[T], now: float) -> None:
        sequence.arrived_s = now
        self._queue(sequence)

    def _advance(self, sequence: LiveSequence[T], now: float) -> bool:
        """Make the next request with a step the current one. Return False if there is none.

        Requests without steps that come before end here; such a request may end the sequence.
        """
        waiting = sequence.waiting
        while waiting:
            item = waiting.popleft()
            if item.rows:
                sequence.current = item
                return True
            self._uncount(item)
            self.request_ends.append(RequestEnd(item, sequence, None))
            if item.ends or sequence.anonymous:
                self._end(sequence, SequenceEnd.ENDED, now)
                return False
        return False

    def _interleave(self, sequence: LiveSequence[T]) -> None:
        if self.limits.interleave and sequence.current is not None and sequence.current.again:
            sequence.interleave()

    def _finish_request(self, sequence: LiveSequence[T], item: T) -> None:
        """Remove a finished request from the queue and from the counts."""
        self._uncount(item)
        if sequence.steps and is_started(item):
            sequence.has_final_steps = True
        if item is sequence.current:
            sequence.current, sequence.abandoned = None, False

    def _uncount(self, item: T) -> None:
        self.requests -= 1
        self.rows -= item.rows

    def _end(self, sequence: LiveSequence[T], reason: SequenceEnd, now: float) -> None:
        """End a sequence with all its waiting requests. A running step is its last."""
        sequence.end_reason = reason
        self.end_counts[reason] += 1
        if not sequence.anonymous and not self._is_replaced(sequence):
            self._recent.add(sequence.id, reason, now)
        self._remove(sequence, lambda: self._recent.end_error(sequence.id, reason))
        if sequence.stage is SequenceStage.ENDED:
            self._report_ended(sequence)

    def _remove(self, sequence: LiveSequence[T], error: Callable[[], PredictorError]) -> None:
        """Remove a sequence from every index of live sequences."""
        current = sequence.current
        if sequence.stage is SequenceStage.WAITING and current is not None:
            self._unqueue(sequence)
        sequence.apply(SequenceEvent.END)
        del self._live[sequence.number]
        self._timeouts.remove(sequence)
        self._placement.release(sequence.instance)
        if self._by_id.get(sequence.id) is sequence:
            del self._by_id[sequence.id]
        if current is not None:
            sequence.waiting.appendleft(current)
            sequence.current = None
        for item in sequence.waiting:
            self._uncount(item)
            self.request_ends.append(RequestEnd(item, sequence, error()))
        sequence.waiting.clear()

    def _finish_ending(self, sequence: LiveSequence[T]) -> None:
        """Record the end of the last step of an ending sequence."""
        sequence.apply(SequenceEvent.STEP_DONE)
        self._report_ended(sequence)

    def _report_ended(self, sequence: LiveSequence[T]) -> None:
        if sequence.instance_knows or not sequence.loaded:
            self.ended_sequences.append(sequence)
