"""The live sequences by their ids: how each begins, is evicted or expires, and ends.

Pure: the caller passes `now`, which never decreases. Ended sequences and their requests collect in
`ended_sequences` and `request_ends` until the caller takes them.
"""

from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from headrace.batching.live_sequence import (
    LiveSequence,
    RequestEnd,
    SequenceEvent,
    SequenceStage,
    StepRequest,
    is_started,
)
from headrace.batching.sequence_ends import RecentEnds, SequenceTimeouts
from headrace.core.errors import PredictorError, TooManySequencesError
from headrace.core.sequence import SequenceControl, SequenceEnd, SequenceLimits

RETRY_S: Final = 1.0
"""Suggested delay before a retry, in seconds: sequences end and steps finish in about this time."""

T = TypeVar("T", bound=StepRequest)


class InstancePlacement:
    """A fixed number of instances, each with any number of sequences. All are available at first."""

    def __init__(self, count: int) -> None:
        # The number of sequences plus a penalty for unavailable instances: the minimum is the best
        # instance.
        self._weights = [0] * count

    def __len__(self) -> int:
        """Return the number of instances."""
        return len(self._weights)

    def count(self, instance: int) -> int:
        """Return the number of sequences on an instance."""
        return self._weights[instance] % _DOWN

    def extend(self, count: int) -> None:
        """Add instances without sequences until there are `count`."""
        self._weights += [0] * (count - len(self._weights))

    def assign(self) -> int:
        """Count one more sequence on the best instance and return that instance.

        The best is the available instance with the fewest sequences. If none is available, take an
        unavailable one; retired instances come last.
        """
        weights = self._weights
        instance = weights.index(min(weights))
        weights[instance] += 1
        return instance

    def release(self, instance: int) -> None:
        """Count one sequence less on an instance."""
        self._weights[instance] -= 1

    def set_available(self, instance: int, *, available: bool) -> None:
        """Mark an instance as available, or as unavailable for the moment.

        A retired instance stays retired until it is available.
        """
        retired = self._weights[instance] >= _RETIRED
        if available or not retired:
            self._weights[instance] = self.count(instance) + (0 if available else _DOWN)

    def retire(self, instance: int) -> None:
        """Mark an instance as gone. Only `set_available` brings it back."""
        self._weights[instance] = self.count(instance) + _RETIRED


class SequenceRegistry(Generic[T]):
    """The live sequences of one model, over a fixed number of instances.

    It calls `unqueue` when the next step of a queued sequence can no longer run. With `checkpoints`,
    a sequence outlives the instance that holds its state; an anonymous sequence never does.
    `keeps_checkpoint` returns True if the checkpoint of an id outlasts an eviction, so that a saved
    idle sequence can make place for another one.
    """

    def __init__(
        self,
        limits: SequenceLimits,
        instances: int,
        *,
        unqueue: Callable[[LiveSequence[T]], object],
        checkpoints: bool,
        keeps_checkpoint: Callable[[str], bool],
    ) -> None:
        self.limits = limits
        self._unqueue = unqueue
        self._checkpoints = checkpoints
        self._keeps_checkpoint = keeps_checkpoint
        self._by_id: dict[str, LiveSequence[T]] = {}
        self._live: dict[int, LiveSequence[T]] = {}
        self._timeouts = SequenceTimeouts[T](limits)
        self._placement = InstancePlacement(instances)
        self._recent = RecentEnds()
        self._numbers = 0
        self.requests: int = 0
        """Number of open requests."""
        self.rows: int = 0
        """Number of rows of the open requests."""
        self.request_ends: list[RequestEnd[T]] = []
        """Requests that ended without a step of their own, withdrawn requests excepted."""
        self.ended_sequences: list[LiveSequence[T]] = []
        """Ended sequences that an instance or a checkpoint store knows."""
        self.end_counts: dict[SequenceEnd, int] = dict.fromkeys(SequenceEnd, 0)

    def __len__(self) -> int:
        """Return the number of live sequences."""
        return len(self._live)

    def __iter__(self) -> Iterator[LiveSequence[T]]:
        """Iterate over the live sequences, oldest first."""
        return iter(self._live.values())

    def find(self, qualified_id: str) -> LiveSequence[T] | None:
        """Return the live sequence with this id, or None."""
        return self._by_id.get(qualified_id)

    def cancel(self, qualified_id: str, now: float) -> bool:
        """End the sequence with this id, with all its waiting requests. Return True if it was live."""
        self.expire(now)
        sequence = self._by_id.get(qualified_id)
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

    # Places of states

    def state_loaded(self, sequence: LiveSequence[T], steps: int) -> None:
        """Record that the state after `steps` steps is now on the sequence's instance."""
        sequence.instance_knows = sequence.loaded = True
        sequence.state_lost = False
        sequence.steps, sequence.has_final_steps = steps, steps > 0

    def unload_state(self, sequence: LiveSequence[T]) -> None:
        """Mark the state on the instance as outdated: load it again before the next step."""
        sequence.loaded = False

    def add_instance(self, instance: int) -> None:
        """Make an instance with this number available for new sequences."""
        self._placement.extend(instance + 1)
        self._placement.set_available(instance, available=True)

    def set_available(self, instance: int, *, available: bool) -> None:
        """Mark an instance as available for new sequences, or not while there is another one."""
        self._placement.set_available(instance, available=available)

    def count(self, instance: int) -> int:
        """Return the number of sequences on an instance."""
        return self._placement.count(instance)

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

    # Beginnings

    def _create(self, control: SequenceControl, now: float) -> LiveSequence[T]:
        """Create a live sequence: a new one, or one whose state a checkpoint store has."""
        resumes = bool(control.id) and not control.start
        if (
            control.start
            and (old := self._by_id.get(control.qualified_id)) is not None
            and not self._ends_with_last_request(old)
        ):
            self._end(old, SequenceEnd.RESTARTED, now)
        if resumes and not control.auto and not self._checkpoints:
            raise self._recent.error_for(control, now)
        self._evict_if_full(control.id, now)
        self._numbers += 1
        # LiveSequence[T](...) would cost as much as the rest of this method.
        sequence: LiveSequence[T] = LiveSequence(
            control.id, self._numbers, self._placement.assign(), now, namespace=control.namespace
        )
        sequence.loaded = not (resumes and self._checkpoints)
        self._live[sequence.number] = sequence
        if control.id:
            self._by_id[sequence.qualified_id] = sequence
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
        return not sequence.anonymous and self._by_id.get(sequence.qualified_id) is not sequence

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
                if (sequence.steps or not sequence.loaded) and self._keeps_checkpoint(sequence.qualified_id)
            ),
            None,
        )

    # Ends

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
            self._recent.add(sequence.qualified_id, reason, now)
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
        if self._by_id.get(sequence.qualified_id) is sequence:
            del self._by_id[sequence.qualified_id]
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


_DOWN: Final = 1 << 32
"""Penalty of an unavailable instance: more than the number of sequences on any instance."""
_RETIRED: Final = 2 * _DOWN
