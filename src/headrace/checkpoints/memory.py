"""A checkpoint store in this process. Checkpoints outlive an instance, but not the process."""

import threading
from collections.abc import Sequence
from typing import NamedTuple

from typing_extensions import override

from headrace.checkpoints.store import CheckpointStore, SequenceCheckpoint, closed_error
from headrace.core.clock import Clock, SystemClock


class _StoredState(NamedTuple):
    steps: int
    state: bytes
    saved_s: float


class MemoryCheckpointStore(CheckpointStore):
    """A checkpoint store in a dictionary, which `close` drops. Its time is that of `clock`."""

    is_remote = False

    def __init__(self, model: str, *, clock: Clock | None = None) -> None:
        self.model = model
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._states: dict[str, _StoredState] | None = {}
        """States in the order of saving, oldest first."""

    @override
    def save(self, checkpoints: Sequence[SequenceCheckpoint]) -> list[bool]:
        with self._lock:
            states, now = self._open(), self._clock.now()
            return [_save(states, checkpoint, now) for checkpoint in checkpoints]

    @override
    def load(self, ids: Sequence[str], *, idle_ms_max: float) -> list[tuple[int, bytes] | None]:
        with self._lock:
            states, oldest_s = self._open(), self._oldest_s(idle_ms_max)
            found = [states.get(id) for id in ids]
        return [
            (state.steps, state.state) if state and state.saved_s >= oldest_s else None for state in found
        ]

    @override
    def delete(self, ids: Sequence[str], steps: Sequence[int] | None = None) -> None:
        with self._lock:
            states = self._open()
            for number, id in enumerate(ids):
                stored = states.get(id)
                if stored and (steps is None or stored.steps == steps[number]):
                    del states[id]

    @override
    def purge(self, *, idle_ms_max: float, count_max: int) -> int:
        with self._lock:
            states, oldest_s = self._open(), self._oldest_s(idle_ms_max)
            old: list[str] = []
            for id, stored in states.items():
                if len(old) >= count_max or stored.saved_s >= oldest_s:
                    break
                old.append(id)
            for id in old:
                del states[id]
            return len(old)

    @override
    def close(self) -> None:
        with self._lock:
            self._states = None

    def _open(self) -> dict[str, _StoredState]:
        if self._states is None:
            raise closed_error(self.model)
        return self._states

    def _oldest_s(self, idle_ms_max: float) -> float:
        return self._clock.now() - idle_ms_max / 1000


def _save(states: dict[str, _StoredState], checkpoint: SequenceCheckpoint, now: float) -> bool:
    id, steps, state, previous_steps = checkpoint
    stored = states.get(id)
    if previous_steps and (
        stored is None or (stored.steps != previous_steps and stored[:2] != (steps, state))
    ):
        return False
    if stored:
        del states[id]
    states[id] = _StoredState(steps, state, now)
    return True
