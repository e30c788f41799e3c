"""Checkpoints of the sequences at one place: brought there before a step, saved after it, deleted when they have ended.

A step is saved before anybody hears of it. So a sequence goes on at its last finished step, wherever it is asked for next: in an
instance that was started again, or in another process that has the same store. Ends without a step are not done here:
`headrace.engine.steps.dismissals` is for these.
"""

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from random import SystemRandom
from typing import Final, NamedTuple

from headrace.checkpoints.store import Checkpoint, CheckpointStore
from headrace.core.clock import Clock
from headrace.core.errors import UnavailableError
from headrace.core.sequence import SequenceEnd
from headrace.engine.reason import reason
from headrace.engine.stepper import Ending
from headrace.engine.steps.channel import StepChannel
from headrace.engine.steps.dismissals import Dismissals
from headrace.engine.steps.work import StepOutcome

PURGE_S: Final = 60.0
"""What nobody has saved for too long is dropped about so often,"""
PURGED_MAX: Final = 1000
"""and so many at once."""
_STEPS_BITS: Final = 32
_DRAWN_BITS: Final = 31
_GOES_ON_ELSEWHERE: Final = frozenset({SequenceEnd.STOPPED, SequenceEnd.EVICTED, SequenceEnd.INSTANCE_LOST})
"""Ends after which a sequence is asked for again, by its checkpoint."""

_log = logging.getLogger("headrace.engine")


class _Mark(NamedTuple):
    """Which checkpoint is a sequence's last."""

    drawn: int
    """What its next mark begins with."""
    last: int
    before: int
    """What is kept if `last` was not; the same where it is known to be."""


class Keeper:
    """Keeps one place's sequences in a store. Blocks; called by one thread at a time.

    What a store tells checkpoints apart by is a mark: a random number, drawn anew whenever a sequence begins, or its state is
    brought somewhere, and its steps. So whoever has an older state of a sequence learns that it is one, also where the newer was
    made by the same steps.
    """

    def __init__(
        self,
        store: CheckpointStore,
        dismissals: Dismissals,
        channel: StepChannel,
        clock: Clock,
        *,
        idle_ms: float,
    ) -> None:
        self._store = store
        self._dismissals = dismissals
        self._channel = channel
        self._clock = clock
        self._idle_ms = idle_ms
        self._marks: dict[int, _Mark] = {}
        """By the sequence's number; of those that have one, until they have ended."""
        self._random = SystemRandom()
        self._purged_s = clock.now()

    def lacks(self, outcomes: Sequence[StepOutcome]) -> bool:
        """Whether `bring` has something to bring."""
        return not all(o.sequence.loaded for o in outcomes)

    def bring(self, outcomes: Sequence[StepOutcome]) -> list[StepOutcome]:
        """Find the states that are not there, for steps that are to be done; those steps whose sequences can go on.

        Raises UnavailableError: then nothing has changed.
        """
        for outcome in outcomes:
            outcome.save = not outcome.sequence.anonymous
        wanted = [o for o in outcomes if not o.sequence.loaded]
        if not wanted:
            return list(outcomes)
        found = self._store.load([o.sequence.id for o in wanted], idle_ms_max=self._idle_ms)
        over = {o for o, kept in zip(wanted, found, strict=True) if not self._brought(o, kept)}
        return [o for o in outcomes if o not in over]

    def _brought(self, outcome: StepOutcome, checkpoint: tuple[int, bytes] | None) -> bool:
        sequence = outcome.sequence
        known = self._marks.get(sequence.number)
        if checkpoint is None or (known is None and self._dismissals.pending(sequence.id)):
            if not self._channel.missing(sequence):
                return False
            self._marks.pop(sequence.number, None)
            outcome.restore = b""
            return True
        mark, state = checkpoint
        steps = mark & ((1 << _STEPS_BITS) - 1)
        same = steps == sequence.steps if known is None else mark in known[1:]
        # Another process has done steps of it since this request's first ones: these were of a state that is gone.
        if sequence.goes_on and not same and not self._channel.missing(sequence):
            return False
        self._marks[sequence.number] = _Mark(self._draw(), mark, mark)
        self._channel.found(sequence, steps)
        outcome.restore = state
        return True

    def save(self, outcomes: Sequence[StepOutcome]) -> None:
        """Keep what the steps made of their states. A step on a state that was not the last one is `undone`.

        What ended with its step is deleted again, once it was saved: by then nobody has gone on with another state of it.
        When the store does not answer, it is not known whether a step is kept: it `fails`, and its state is brought anew.
        """
        self._tidy()
        for outcome in outcomes:
            if outcome.restore and outcome.outputs is None:
                # With the step, what was brought for it was put back.
                self._channel.unload(outcome.sequence)
        saved = [o for o in outcomes if o.saved is not None and o.counts]
        if not saved:
            return
        try:
            kept = self._save(saved)
        except UnavailableError as error:
            self._fail(saved, error)
            return
        try:
            self._delete_last([o for o in kept if o.is_last])
        except UnavailableError as error:
            self._fail([o for o in kept if o.is_last], error)

    def _save(self, outcomes: Sequence[StepOutcome]) -> list[StepOutcome]:
        """Those steps that count; of what was ended meanwhile nothing is kept."""
        first = any(o.sequence.number not in self._marks for o in outcomes)
        with self._dismissals.first_saves if first else nullcontext():
            saved = [o for o in outcomes if o.sequence.why is None]
            if not saved:
                return []
            kept = self._store.save([self._checkpoint(o) for o in saved])
        for outcome, is_kept in zip(saved, kept, strict=True):
            if is_kept:
                number = outcome.sequence.number
                mark = self._marks[number]
                self._marks[number] = mark._replace(before=mark.last)
            else:
                self._channel.unload(outcome.sequence)
                outcome.undo()
        return [o for o, is_kept in zip(saved, kept, strict=True) if is_kept]

    def _delete_last(self, outcomes: Sequence[StepOutcome]) -> None:
        if not outcomes:
            return
        numbers = [o.sequence.number for o in outcomes]
        self._store.delete([o.sequence.id for o in outcomes], [self._marks[n].last for n in numbers])
        for number in numbers:
            del self._marks[number]

    def _fail(self, outcomes: Sequence[StepOutcome], error: UnavailableError) -> None:
        for outcome in outcomes:
            self._channel.unload(outcome.sequence)
            outcome.fails(error, reason(error), finished=True, withdrawn=True)

    def _checkpoint(self, outcome: StepOutcome) -> Checkpoint:
        sequence = outcome.sequence
        known = self._marks.get(sequence.number)
        drawn, before = (self._draw(), 0) if known is None else (known.drawn, known.last)
        assert outcome.saved is not None
        mark = drawn << _STEPS_BITS | (sequence.steps + 1)
        self._marks[sequence.number] = _Mark(drawn, mark, before)
        return Checkpoint(sequence.id, mark, outcome.saved, before)

    def _draw(self) -> int:
        return self._random.randrange(1, 1 << _DRAWN_BITS)

    def ended(self, endings: Sequence[Ending]) -> None:
        """Delete what is kept of these, unless they go on elsewhere. What the store does not do now it does by itself, later."""
        over: list[tuple[str, int]] = []
        for ending in endings:
            known = self._marks.pop(ending.number, None)
            if known is not None and ending.why not in _GOES_ON_ELSEWHERE:
                over.append((ending.id, known.last))
        if not over:
            return
        try:
            self._store.delete([id for id, _ in over], [mark for _, mark in over])
        except UnavailableError as error:
            _log.warning("checkpoints of sequences that have ended were not deleted: %s", error)

    def _tidy(self) -> None:
        """Drop what nobody has asked for, now and then."""
        now = self._clock.now()
        if now - self._purged_s < PURGE_S:
            return
        self._purged_s = now
        try:
            self._store.purge(idle_ms_max=self._idle_ms, count_max=PURGED_MAX)
        except UnavailableError as error:
            _log.warning("old checkpoints were not dropped: %s", error)
