"""The checkpoint store of one model, used in threads of its own, since it may stall.

It is probed, called beside the steps, and cleared of sequences that end without a step: their
checkpoints are deleted before the end is reported, since a client that gets the report may start a
sequence of the same id anywhere at once.
"""

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from math import inf
from typing import Final, NamedTuple

from typing_extensions import override

from headrace.batching.live_sequence import LiveSequence, RequestEnd
from headrace.checkpoints.store import CheckpointStore, SequenceCheckpoint
from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError, SequenceGoneError, UnavailableError
from headrace.core.sequence import SequenceControl
from headrace.engine.model_methods import internal_error
from headrace.engine.pending_request import PendingRequest, RequestResult
from headrace.engine.sequences.row_request import RowRequest

PROBE_S: Final = 2.0
"""Seconds between two probes."""
STALL_S: Final = 1.0
"""Duration in seconds from which on a failed call counts as stalled."""
PROBE_ID: Final = "headrace-probe"
"""The sequence id that a probe loads. It need not exist."""
STORE_WAIT_S: Final = 0.1
"""Limit, in seconds, of the wait for a store call. Work that needs no store waits no longer."""
BATCH_MAX: Final = 256
"""Limit of ids per look-up."""
_UNREACHABLE: Final = "the checkpoint store cannot be reached: the model is not ready until it can"

_log = logging.getLogger("headrace.engine")


class MonitoredStore(CheckpointStore):
    """A store with a thread that probes it: every `PROBE_S`, and at once after a failed call.

    While a store stalls, its calls raise UnavailableError at once, so that each step does not wait for
    a time-out of its own. A call that fails quickly is no reason for that.

    A probe is one load of one checkpoint. It takes no longer than the time-outs of the store.
    """

    def __init__(self, store: CheckpointStore, clock: Clock, *, model: str) -> None:
        self._store = store
        self.is_remote = store.is_remote
        self._clock = clock
        self._model = model
        self.available: bool | None = None
        """True if the last probe succeeded; None before the first one."""
        self._stalled = False
        """True from a stalled call until a probe succeeds."""
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Probe the store once, then start the thread. Does nothing once closed."""
        self._probe()
        with self._lock:
            if self._closed or self._thread is not None:
                return
            self._thread = threading.Thread(
                target=self._run, name=f"headrace-{self._model}-store", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        while not self._closed:
            self._clock.sleep(PROBE_S, self._wake)
            self._wake.clear()
            if not self._closed:
                self._probe()

    def _probe(self) -> None:
        reachable = self._answers()
        self._stalled = self._stalled and not reachable
        if reachable is self.available or self._closed:
            return
        self.available = reachable
        if reachable:
            _log.info("the checkpoint store can be reached", extra={"model": self._model})
        else:
            _log.warning(_UNREACHABLE, extra={"model": self._model})

    def _answers(self) -> bool:
        try:
            self._store.load([PROBE_ID], idle_ms_max=inf)
        except UnavailableError:
            return False  # the store has logged the reason
        except Exception:  # noqa: BLE001 - a defect of the store must not end the thread
            _log.exception("a probe of the checkpoint store failed", extra={"model": self._model})
            return False
        return True

    @contextmanager
    def _watched(self) -> Generator[None]:
        if self._stalled:
            raise UnavailableError(
                f"the checkpoint store of model {self._model}", "it does not respond; try again later"
            )
        began_s = self._clock.now()
        try:
            yield
        except UnavailableError:
            self._stalled = self._stalled or self._clock.now() - began_s >= STALL_S
            if self.available:
                self._wake.set()
            raise

    @override
    def save(self, checkpoints: Sequence[SequenceCheckpoint]) -> list[bool]:
        with self._watched():
            return self._store.save(checkpoints)

    @override
    def load(self, ids: Sequence[str], *, idle_ms_max: float) -> list[tuple[int, bytes] | None]:
        with self._watched():
            return self._store.load(ids, idle_ms_max=idle_ms_max)

    @override
    def delete(self, ids: Sequence[str], steps: Sequence[int] | None = None) -> None:
        with self._watched():
            self._store.delete(ids, steps)

    @override
    def purge(self, *, idle_ms_max: float, count_max: int) -> int:
        with self._watched():
            return self._store.purge(idle_ms_max=idle_ms_max, count_max=count_max)

    @override
    def close(self) -> None:
        """Close the store, and end the thread."""
        with self._lock:
            self._closed = True
        self._wake.set()
        self._store.close()
        if self._thread is not None:
            self._thread.join()


class StoreThread:
    """A thread for the store calls of one instance, which run in order.

    One thread at a time calls the methods. It waits for its call, which keeps the batches of a
    quick store together; but not for a slow call, nor for one behind that. Without `is_remote`,
    it makes each call itself.
    """

    def __init__(self, name: str, *, is_remote: bool) -> None:
        self._is_remote = is_remote
        # It starts its thread with its first call.
        self._executor = ThreadPoolExecutor(1, name)
        self._late: Future[None] | None = None
        """The last call that was not waited for."""

    def run(self, call: Callable[[], None], when_late: Callable[[BaseException | None], None]) -> bool:
        """Run a call of the store. Return True if it is finished; raise its error.

        Otherwise return False. Then `when_late` is called once the call is finished, with its error
        or None, before the next call begins. It must not raise.
        """
        if not self._is_remote:
            call()
            return True
        future = self._executor.submit(call)
        if self._late is None or self._late.done():
            try:
                error = future.exception(STORE_WAIT_S)
            except TimeoutError:
                pass
            else:
                if error is not None:
                    raise error
                return True
        self._late = future
        future.add_done_callback(lambda done: when_late(done.exception()))
        return False

    def wait(self) -> None:
        """Wait until all calls are finished, as long as the store takes."""
        if self._late is not None:
            # Behind the late calls, and what follows each of them.
            self._executor.submit(lambda: None).result()
            self._late = None

    def close(self) -> None:
        """Finish all calls, and end the thread."""
        self._executor.shutdown()


class StateDelete(NamedTuple):
    """A sequence that has ended, at least in this process, and whose checkpoint is to be deleted."""

    sequence: SequenceControl | LiveSequence[RowRequest]
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
            self._pending[state_delete.sequence.qualified_id] += 1
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
            StateDelete(sequence, sequence.instance_knows or sequence.loaded, row_request.finish_with_entry)
        )

    def pending(self, qualified_id: str) -> bool:
        """Return True if a delete of this id waits or runs."""
        return qualified_id in self._pending

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
        ids = [delete.sequence.qualified_id for delete in batch]
        try:
            with self.first_saves:
                had_checkpoint = self._delete(ids)
        except UnavailableError as caught:
            error = caught
        except Exception as caught:  # noqa: BLE001 - whatever it is, it is reported to the clients
            _log.exception(
                "checkpoints of ended sequences could not be deleted", extra={"model": self._model}
            )
            error = internal_error(self._model, caught)
        with self._lock:
            self._pending -= Counter(ids)
        results: list[tuple[PendingRequest, RequestResult]] = []
        for delete, had_state in zip(batch, had_checkpoint, strict=True):
            not_found = (
                None
                if delete.was_live or had_state
                else SequenceGoneError(delete.sequence.id, "there is no such sequence")
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
