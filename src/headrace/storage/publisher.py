"""Many objects written at once: in the background where a store is far away, and durable together at the end."""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from headrace.storage.contract import Store
from headrace.storage.local import LocalStore

THREADS: Final = 16
WAITING_MAX: Final = 64
"""Objects that wait or are on their way, at most."""
WAITING_BYTES_MAX: Final = 64 << 20


class Publisher:
    """Writes whole objects below one folder; on a disk they are in the folder `drafts` until then. One thread at a time.

    `put` returns before the object is there, and blocks while WAITING_MAX objects or WAITING_BYTES_MAX bytes are on their
    way. `settle` returns when everything is there and will stay, also through a power cut; what went wrong with any of it
    is raised there, or by an earlier `put`.
    """

    def __init__(self, store: Store, folder: str, *, drafts: str) -> None:
        self._store = store
        self._folder = folder
        self._drafts = drafts
        self._waiting: deque[tuple[Future[None], int]] = deque()
        self._waiting_bytes = 0
        self._pool: ThreadPoolExecutor | None = None
        self._unflushed = False

    def put(self, uri: str, data: bytes) -> None:
        """Write `data` as the object `uri`, replacing."""
        if isinstance(self._store, LocalStore):
            self._store.put_unflushed(uri, data, drafts=self._drafts)
            self._unflushed = True
            return
        while len(self._waiting) >= WAITING_MAX or self._waiting_bytes >= WAITING_BYTES_MAX:
            self._take_one()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, "headrace-publisher")
        self._waiting.append((self._pool.submit(self._store.put, uri, data), len(data)))
        self._waiting_bytes += len(data)

    def _take_one(self) -> None:
        future, nbytes = self._waiting.popleft()
        self._waiting_bytes -= nbytes
        future.result()

    def settle(self) -> None:
        """Wait until all of it is there, for good."""
        while self._waiting:
            self._take_one()
        if self._unflushed and isinstance(self._store, LocalStore):
            self._store.flush(self._folder)
            self._unflushed = False

    def close(self) -> None:
        """Let what has begun end, and forget the rest. Closing twice does nothing."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        self._waiting.clear()
