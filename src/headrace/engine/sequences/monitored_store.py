"""A checkpoint store that may stall: its probes, and the thread that calls it beside other work."""

import logging
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from math import inf
from typing import Final

from typing_extensions import override

from headrace.checkpoints.store import CheckpointStore, SequenceCheckpoint
from headrace.core.clock import Clock
from headrace.core.errors import UnavailableError

PROBE_S: Final = 2.0
"""Seconds between two probes."""
STALL_S: Final = 1.0
"""Duration in seconds from which on a failed call counts as stalled."""
PROBE_ID: Final = "headrace-probe"
"""The sequence id that a probe loads. It need not exist."""
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


STORE_WAIT_S: Final = 0.1
"""Limit, in seconds, of the wait for a store call. Work that needs no store waits no longer."""


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
