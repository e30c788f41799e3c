"""One instance, as its sequences see it: whose next step can be done there, and whether it sleeps until one can.

Passive: guarded by the channel's lock.
"""

from headrace.batching.adaptive import AdaptiveBatch, AdaptiveBatcher, LookAgain
from headrace.engine.channel import Taker
from headrace.engine.stepper import Ending
from headrace.engine.steps.work import Live


class StepPlace:
    """Queues the sequences that can be stepped, and closes calls of them."""

    def __init__(self) -> None:
        self._batcher = AdaptiveBatcher[Live](rows_max=1, delay_s=0.0)
        self._taker: Taker | None = None
        """Asleep, until it is woken."""
        self._wanted = LookAgain()
        """What it waits for."""
        self._idle_since_s: float | None = None
        self._hurry = False
        """Whether a step goes on that was begun: it waits for no company."""
        self._rows_max = 1
        self.endings: list[Ending] = []
        """Sequences that are over, of which the model is to be told."""
        self.running = 0
        """Steps that were taken, and of which it is not known what came."""

    def __len__(self) -> int:
        """Steps that wait."""
        return len(self._batcher)

    @property
    def full(self) -> bool:
        """Whether a call of those that wait would be a full one. Also without the lock."""
        return len(self._batcher) >= self._rows_max

    @property
    def oldest_s(self) -> float | None:
        """When the step that has waited longest was asked for; None when none waits."""
        return self._batcher.oldest_s()

    @property
    def asleep(self) -> bool:
        """Whether its instance waits to be woken."""
        return self._taker is not None

    def resize(self, *, rows_max: int, delay_s: float) -> None:
        """What a call may hold, and how long it may wait for company, from now on."""
        self._rows_max = rows_max
        self._batcher.resize(rows_max=rows_max, delay_s=delay_s)

    def add(self, sequence: Live) -> None:
        """Its next step can be done."""
        self._batcher.add(sequence)
        self._hurry = self._hurry or sequence.goes_on
        self.wake()

    def remove(self, sequence: Live) -> None:
        """Its next step cannot be done any more."""
        self._batcher.remove(sequence)

    def ended(self, ending: Ending) -> None:
        """The model is to be told of this, at once."""
        self.endings.append(ending)
        self.wake(always=True)

    def next(self, now: float, *, flush: bool) -> AdaptiveBatch[Live] | LookAgain:
        """What its instance, which is free, should do now, or when to ask again."""
        if self._idle_since_s is None:
            self._idle_since_s = now
        return self._batcher.next(
            running_rows=0,
            running=0,
            idle_since_s=self._idle_since_s,
            now=now,
            flush=flush or self._hurry,
        )

    def next_full(self, now: float) -> AdaptiveBatch[Live] | None:
        """What its instance should do when it is free again, where that fills a call already."""
        if not self.full:
            return None
        found = self._batcher.next(running_rows=0, running=0, idle_since_s=now, now=now, flush=True)
        return found if isinstance(found, AdaptiveBatch) else None

    def taken(self, batch: AdaptiveBatch[Live] | None) -> tuple[Ending, ...]:
        """Its instance has these steps, if any, and tells the model of the ends that this returns."""
        endings, self.endings = tuple(self.endings), []
        if batch is not None:
            self.running += len(batch.items)
            self._hurry = self._hurry and bool(len(self._batcher))
        return endings

    def call_ended(self, now: float) -> None:
        """The steps of a call are over."""
        self._batcher.ended(now)

    # Sleep

    def sleeps(self, taker: Taker, wanted: LookAgain) -> None:
        """Its instance waits for what is wanted."""
        self._taker, self._wanted = taker, wanted

    def awake(self) -> None:
        """Its instance has something to do, or takes nothing for the moment."""
        self._taker = self._idle_since_s = None

    def wake(self, *, always: bool = False) -> None:
        """Wake its instance if there is what it waits for."""
        taker, wanted, waiting = self._taker, self._wanted, len(self._batcher)
        if taker is None:
            return
        if always or self._hurry or waiting >= wanted.rows or waiting >= wanted.requests:
            self._taker = None
            taker.wake()
