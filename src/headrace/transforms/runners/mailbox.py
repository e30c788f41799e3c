"""What a run and workers far away tell each other where both can look: objects beside the ledger's records.

For engines that carry no messages while they work. Counts that must be true are in the ledger; what is here is for
progress, for figures, and for knowing what a worker was doing when it died.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import orjson

from headrace.core.errors import NotFoundError
from headrace.transforms.ledger import WORKERS, TransformLedger
from headrace.transforms.observation import Observation
from headrace.transforms.runners.messages import Message, Tally

_DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class Letter:
    """All that one worker has to tell, each time anew: a later one takes the place of the one before.

    `pipeline` is what it works for, `host` and `pid` are its process; `doing` what it was told to do and has not ended, in order; `done` every task that it
    has finished. `error` is what broke its last assignment.
    """

    worker: str
    pipeline: str
    host: str
    pid: int
    doing: tuple[int, ...] = ()
    done: tuple[int, ...] = ()
    tally: Tally = field(default_factory=Tally)
    observed: Message | None = None
    error: Message | None = None

    def to_json(self) -> bytes:
        """As it is written."""
        data: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        return orjson.dumps({**data, "tally": self.tally.to_json()})

    @classmethod
    def from_json(cls, text: bytes) -> "Letter":
        """Read back."""
        data: dict[str, Any] = orjson.loads(text)
        lists: dict[str, Any] = {name: tuple(data[name]) for name in ("doing", "done")}
        data |= {**lists, "tally": Tally.from_json(data["tally"])}
        return cls(**data)

    def heard(self, message: Message) -> "Letter":
        """With what the worker says now."""
        if "tally" in message:
            return replace(self, tally=Tally.from_json(message["tally"]))
        if "task" in message:
            number = orjson.loads(message["task"])["task"]
            return replace(self, done=(*self.done, number))
        if "observed" in message:
            return replace(self, observed=_together(self.observed, message["observed"]))
        if "error" in message:
            return replace(self, error=message["error"], doing=())
        return replace(self, doing=()) if "idle" in message else self


def _together(before: Message | None, now: Message) -> Message:
    if before is None:
        return now
    both = Observation.from_json(before)
    both.add_all(Observation.from_json(now))
    return both.to_json()


class Mailbox:
    """Letters of one run's workers, and the one thing that they are told: to drain. One thread."""

    def __init__(self, ledger: TransformLedger) -> None:
        self._store = ledger.store
        self._folder = ledger.uri(WORKERS)
        self._seen: dict[str, str | None] = {}
        """By its name, the version of each letter that was read."""

    # A worker's side

    def write(self, letter: Letter) -> None:
        """Tell; replaces what this worker told before."""
        self._store.put(f"{self._folder}{letter.worker}.json", letter.to_json())

    def draining(self) -> bool:
        """Whether no more tasks are to be begun."""
        return any(info.uri == self._folder + _DRAIN for info in self._store.list(self._folder + _DRAIN))

    # The run's side

    def read(self) -> Sequence[Letter]:
        """The letters that are new since they were read last."""
        letters: list[Letter] = []
        for info in self._store.list(self._folder):
            if not info.uri.endswith(".json") or (info.etag and self._seen.get(info.uri) == info.etag):
                continue
            try:
                letters.append(Letter.from_json(self._store.get(info.uri)))
            except NotFoundError:
                continue
            self._seen[info.uri] = info.etag
        return letters

    def ask_to_drain(self) -> None:
        """Tell all workers, also those that come later."""
        self._store.put(self._folder + _DRAIN, b"")

    def clear(self) -> None:
        """Throw everything away."""
        self._seen.clear()
        for info in list(self._store.list(self._folder)):
            self._store.delete(info.uri)
