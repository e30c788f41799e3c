"""Checkpoints in this process: they outlive an instance that dies, and nothing more."""

import threading
from collections.abc import Sequence
from typing import NamedTuple

from headrace.checkpoints.store import Checkpoint
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import UnavailableError


class _Kept(NamedTuple):
    steps: int
    state: bytes
    saved_s: float


class MemoryCheckpointStore:
    """A `CheckpointStore` in a dictionary, which is gone when it is closed. Its time is that of `clock`."""

    def __init__(self, model: str, *, clock: Clock | None = None) -> None:
        self.model = model
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] | None = {}
        """In the order in which they were saved, so that the oldest come first."""

    def save(self, checkpoints: Sequence[Checkpoint]) -> list[bool]:
        """See `CheckpointStore.save`."""
        with self._lock:
            kept, now = self._open(), self._clock.now()
            return [_save(kept, checkpoint, now) for checkpoint in checkpoints]

    def load(self, ids: Sequence[str], *, idle_ms_max: float) -> list[tuple[int, bytes] | None]:
        """See `CheckpointStore.load`."""
        with self._lock:
            kept, oldest_s = self._open(), self._oldest_s(idle_ms_max)
            found = [kept.get(id) for id in ids]
        return [(f.steps, f.state) if f and f.saved_s >= oldest_s else None for f in found]

    def delete(self, ids: Sequence[str], steps: Sequence[int] | None = None) -> None:
        """See `CheckpointStore.delete`."""
        with self._lock:
            kept = self._open()
            for number, id in enumerate(ids):
                there = kept.get(id)
                if there and (steps is None or there.steps == steps[number]):
                    del kept[id]

    def purge(self, *, idle_ms_max: float, count_max: int) -> int:
        """See `CheckpointStore.purge`."""
        with self._lock:
            kept, oldest_s = self._open(), self._oldest_s(idle_ms_max)
            old: list[str] = []
            for id, there in kept.items():
                if len(old) >= count_max or there.saved_s >= oldest_s:
                    break
                old.append(id)
            for id in old:
                del kept[id]
            return len(old)

    def close(self) -> None:
        """See `CheckpointStore.close`."""
        with self._lock:
            self._kept = None

    def _open(self) -> dict[str, _Kept]:
        if self._kept is None:
            raise UnavailableError("memory:", f"the checkpoints of model {self.model} are closed")
        return self._kept

    def _oldest_s(self, idle_ms_max: float) -> float:
        return self._clock.now() - idle_ms_max / 1000


def _save(kept: dict[str, _Kept], checkpoint: Checkpoint, now: float) -> bool:
    id, steps, state, before = checkpoint
    there = kept.get(id)
    if before and (there is None or (there.steps != before and there[:2] != (steps, state))):
        return False
    if there:
        del kept[id]
    kept[id] = _Kept(steps, state, now)
    return True
