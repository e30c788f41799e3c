"""Deletes the checkpoints of sequences that end without a step, before their end is reported.

A client that gets the report may start a sequence of the same id anywhere at once.
"""

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from headrace.batching.live_sequence import RequestEnd
from headrace.checkpoints.store import CheckpointStore
from headrace.core.errors import HeadraceError, SequenceGoneError, UnavailableError
from headrace.engine.model_errors import internal_error
from headrace.engine.pending_request import PendingRequest, RequestResult
from headrace.engine.sequences.row_request import RowRequest

_log = logging.getLogger("headrace.engine")

BATCH_MAX: Final = 256
"""Limit of ids per look-up."""


class StateDelete(NamedTuple):
    """A sequence that has ended, at least in this process, and whose checkpoint is to be deleted."""

    id: str
    was_live: bool
    """True if the sequence was live in this process. Else it was live if it has a checkpoint."""
    make_result: Callable[[BaseException | None], tuple[PendingRequest, RequestResult] | None] | None = None
    """Returns the request to complete and its result, given the error of the delete."""


class PendingStateDeletes:
    """The checkpoints to delete, and a thread that deletes them and delivers the results.

    Any thread.

    A new sequence of the same id keeps its checkpoint: `is_stored_sequence` returns True for a live
    sequence that has, or will have, a checkpoint of its own.
    """

    def __init__(
        self,
        store: CheckpointStore,
        deliver_results: Callable[[list[tuple[PendingRequest, RequestResult]]], None],
        is_stored_sequence: Callable[[str], bool],
        *,
        model: str,
        idle_ms: float,
    ) -> None:
        self.first_saves = threading.Lock()
        """Held while the first checkpoint of a sequence is saved, which replaces any older one, and
        while checkpoints are deleted.
        """
        self._store = store
        self._deliver_results = deliver_results
        self._model = model
        self._is_stored_sequence = is_stored_sequence
        self._idle_ms = idle_ms
        self._lock = threading.Lock()
        self._waiting: deque[StateDelete] = deque()
        self._pending: Counter[str] = Counter()
        self._running = self._closed = False
        self._thread = ThreadPoolExecutor(1, f"headrace-{model}-ends")

    @property
    def waiting(self) -> int:
        """Number of waiting deletes."""
        return len(self._waiting)

    def add(self, state_delete: StateDelete) -> bool:
        """Queue a delete. Return False once closed. Never blocks."""
        with self._lock:
            if self._closed:
                return False
            self._waiting.append(state_delete)
            self._pending[state_delete.id] += 1
            if not self._running:
                self._running = True
                self._thread.submit(self._run)
            return True

    def take_over(self, request_end: list[RequestEnd[RowRequest]]) -> None:
        """Remove the ends that this object reports: of sequences ended by a request without a step."""
        request_end[:] = [delete for delete in request_end if not self._take_over_one(delete)]

    def _take_over_one(self, request_end: RequestEnd[RowRequest]) -> bool:
        sequence, row_request = request_end.sequence, request_end.item
        if request_end.error is not None or not row_request.ends or sequence.anonymous:
            return False
        return self.add(
            StateDelete(
                sequence.id, sequence.instance_knows or sequence.loaded, row_request.finish_with_entry
            )
        )

    def pending(self, id: str) -> bool:
        """Return True if a delete of this id waits or runs."""
        return id in self._pending

    def close(self) -> None:
        """Finish the waiting deletes, and accept no more."""
        with self._lock:
            self._closed = True
        self._thread.shutdown()

    def _run(self) -> None:
        while True:
            with self._lock:
                batch = [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
                self._running = bool(batch)
            if not batch:
                return
            self._delete_batch(batch)

    def _delete_batch(self, batch: list[StateDelete]) -> None:
        error: HeadraceError | None = None
        had_checkpoint = [False] * len(batch)
        try:
            with self.first_saves:
                had_checkpoint = self._delete([delete.id for delete in batch])
        except UnavailableError as caught:
            error = caught
        except Exception as caught:  # noqa: BLE001 - whatever it is, it is reported to the clients
            _log.exception(
                "checkpoints of ended sequences could not be deleted", extra={"model": self._model}
            )
            error = internal_error(self._model, caught)
        with self._lock:
            self._pending -= Counter(delete.id for delete in batch)
        results: list[tuple[PendingRequest, RequestResult]] = []
        for delete, had_state in zip(batch, had_checkpoint, strict=True):
            not_found = (
                None
                if delete.was_live or had_state
                else SequenceGoneError(delete.id, "there is no such sequence")
            )
            result = None if delete.make_result is None else delete.make_result(error or not_found)
            if result is not None:
                results.append(result)
        if results:
            self._deliver_results(results)

    def _delete(self, ids: list[str]) -> list[bool]:
        """Delete the checkpoints. Return for each id whether it had one.

        A checkpoint saved between look-up and delete stays: it belongs to a new sequence.
        """
        had_checkpoint = self._store.load(ids, idle_ms_max=self._idle_ms)
        request_end = [
            (id, kept[0])
            for id, kept in zip(ids, had_checkpoint, strict=True)
            if kept is not None and not self._is_stored_sequence(id)
        ]
        if request_end:
            self._store.delete([id for id, _ in request_end], [mark for _, mark in request_end])
        return [kept is not None for kept in had_checkpoint]
