"""Ends of sequences that their clients ask for without a step, where checkpoints are kept: told once nothing is kept.

A client that was told so may ask for the same id anywhere at once, and begins anew there.
"""

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from headrace.batching.live_sequence import Over
from headrace.checkpoints.store import CheckpointStore
from headrace.core.errors import HeadraceError, SequenceGoneError, UnavailableError
from headrace.engine.reason import unforeseen
from headrace.engine.steps.part import Part
from headrace.engine.ticket import Answer, Ticket

_log = logging.getLogger("headrace.engine")

BATCH_MAX: Final = 256
"""Ids that are looked up at once."""


class Dismissal(NamedTuple):
    """A sequence that is over, here at least: whatever is kept of it is to be deleted."""

    id: str
    lived: bool
    """Whether it lived here; else it did if something is kept of it."""
    answer: Callable[[BaseException | None], tuple[Ticket, Answer] | None] | None = None
    """What whoever asked is told, when this came to such an error."""


class Dismissals:
    """Deletes checkpoints in a thread of its own, and then tells who asked. Any thread.

    A sequence of the same id that began since keeps what is its own: whatever has a checkpoint, or will have, `lasts`.
    """

    def __init__(
        self,
        store: CheckpointStore,
        tell: Callable[[list[tuple[Ticket, Answer]]], None],
        lasts: Callable[[str], bool],
        *,
        model: str,
        idle_ms: float,
    ) -> None:
        self.first_saves = threading.Lock()
        """Held where a sequence's first checkpoint is saved, which takes the place of whatever is there, and where these go."""
        self._store = store
        self._tell = tell
        self._model = model
        self._lasts = lasts
        self._idle_ms = idle_ms
        self._lock = threading.Lock()
        self._waiting: deque[Dismissal] = deque()
        self._pending: Counter[str] = Counter()
        self._running = self._closed = False
        self._thread = ThreadPoolExecutor(1, f"headrace-{model}-ends")

    @property
    def waiting(self) -> int:
        """How many wait to be done."""
        return len(self._waiting)

    def add(self, dismissal: Dismissal) -> bool:
        """Delete what is kept of it, and tell; not, when this is closed. Never blocks."""
        with self._lock:
            if self._closed:
                return False
            self._waiting.append(dismissal)
            self._pending[dismissal.id] += 1
            if not self._running:
                self._running = True
                self._thread.submit(self._work)
            return True

    def take_over(self, over: list[Over[Part]]) -> None:
        """Of these, requests that ended their sequences without a step are over when nothing is kept of these: they are taken out."""
        over[:] = [each for each in over if not self._took(each)]

    def _took(self, over: Over[Part]) -> bool:
        sequence, part = over.sequence, over.item
        if over.error is not None or not part.ends or sequence.anonymous:
            return False
        return self.add(Dismissal(sequence.id, sequence.begun or sequence.loaded, part.finished))

    def pending(self, id: str) -> bool:
        """Whether what is kept of this id is of a sequence that is over."""
        return id in self._pending

    def close(self) -> None:
        """Do what waits, and take no more."""
        with self._lock:
            self._closed = True
        self._thread.shutdown()

    def _work(self) -> None:
        while True:
            with self._lock:
                some = [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
                self._running = bool(some)
            if not some:
                return
            self._do(some)

    def _do(self, some: list[Dismissal]) -> None:
        error: HeadraceError | None = None
        found = [False] * len(some)
        try:
            with self.first_saves:
                found = self._delete([each.id for each in some])
        except UnavailableError as raised:
            error = raised
        except Exception as raised:  # noqa: BLE001 - whatever it is, whoever asked hears of it
            _log.exception("ends of sequences could not be kept", extra={"model": self._model})
            error = unforeseen(self._model, raised)
        with self._lock:
            self._pending -= Counter(each.id for each in some)
        answers: list[tuple[Ticket, Answer]] = []
        for each, there in zip(some, found, strict=True):
            gone = None if each.lived or there else SequenceGoneError(each.id, "there is no such sequence")
            answered = None if each.answer is None else each.answer(error or gone)
            if answered is not None:
                answers.append(answered)
        if answers:
            self._tell(answers)

    def _delete(self, ids: list[str]) -> list[bool]:
        """Which had a checkpoint. What somebody saves between the two stays: it began anew."""
        found = self._store.load(ids, idle_ms_max=self._idle_ms)
        over = [
            (id, kept[0])
            for id, kept in zip(ids, found, strict=True)
            if kept is not None and not self._lasts(id)
        ]
        if over:
            self._store.delete([id for id, _ in over], [mark for _, mark in over])
        return [kept is not None for kept in found]
