"""The table of live sequences, for models with a state between requests: which step runs next.

Requests of a sequence run in order, one step at a time. A sequence stays on one instance, the
holder of its state, until it ends. The table is pure: the caller passes `now`, which never
decreases.
"""

from collections.abc import Callable, Iterable

from headrace.batching.live_sequence import (
    LiveSequence,
    RequestEnd,
    SequenceEvent,
    SequenceStage,
    StepRequest,
)
from headrace.batching.sequence_registry import RETRY_S, SequenceRegistry, T
from headrace.core.errors import SequenceFullError
from headrace.core.sequence import SequenceControl, SequenceEnd, SequenceLimits

__all__ = ["RETRY_S", "LiveSequence", "RequestEnd", "SequenceTable", "StepRequest"]


class SequenceTable(SequenceRegistry[T]):
    """The live sequences of one model with their requests and steps.

    The table calls `queue` when the next step of a sequence can run on its instance. It calls
    `unqueue` when that step can no longer run, except when `begin_step` took it. `SequenceRegistry`
    describes the other arguments.
    """

    def __init__(
        self,
        limits: SequenceLimits,
        instances: int,
        *,
        queue: Callable[[LiveSequence[T]], None],
        unqueue: Callable[[LiveSequence[T]], object],
        checkpoints: bool = False,
        keeps_checkpoint: Callable[[str], bool] = lambda _: False,
    ) -> None:
        super().__init__(
            limits, instances, unqueue=unqueue, checkpoints=checkpoints, keeps_checkpoint=keeps_checkpoint
        )
        self._queue = queue

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
        sequence = self._by_id.get(control.qualified_id) if control.id and not control.start else None
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

    # Instances

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
                self._remove(sequence, lambda: self._recent.error_for(sequence, now))
        sequence.apply(SequenceEvent.STEP_DONE)
        if sequence.instance_knows:
            self.ended_sequences.append(sequence)
        return False

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

    def drain_instance(self, instance: int) -> list[LiveSequence[T]]:
        """Give an instance no more sequences until `add_instance`, and move those that can continue.

        Sequences without a state there, or with a checkpoint, move to the instance of a new sequence
        unless a step of them runs. Return the sequences that moved; `count` of them are left.
        """
        self._placement.retire(instance)
        if not self.count(instance):
            return []
        moving = [
            sequence
            for sequence in self._on_instance(instance)
            if sequence.stage is not SequenceStage.STEPPING and self._detach_state(sequence)
        ]
        for sequence in moving:
            self._move(sequence)
        return moving

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
