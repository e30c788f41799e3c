"""Write many objects in the background, and make them durable together."""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from headrace.storage.contract import Store
from headrace.storage.local import LocalStore

THREADS: Final = 16
PENDING_MAX: Final = 64
"""The limit of objects queued or being written."""
PENDING_BYTES_MAX: Final = 64 << 20


class DraftPublisher:
    """A writer of many whole objects below one folder. For one thread at a time.

    `put` returns before the object exists. It blocks while PENDING_MAX objects or PENDING_BYTES_MAX
    bytes are pending. `flush` returns when all objects are durable, also against a power cut.
    Errors are raised by `flush` or by an earlier `put`. On a disk, temporary files are in the
    folder `drafts`.
    """

    def __init__(self, store: Store, folder: str, *, drafts: str) -> None:
        self._store = store
        self._folder = folder
        self._drafts = drafts
        self._pending: deque[tuple[Future[None], int]] = deque()
        self._pending_bytes = 0
        self._pool: ThreadPoolExecutor | None = None
        self._unflushed = False

    def put(self, uri: str, data: bytes) -> None:
        """Write `data` as the object `uri`, replacing an existing one."""
        if isinstance(self._store, LocalStore):
            self._store.put_unflushed(uri, data, drafts=self._drafts)
            self._unflushed = True
            return
        while len(self._pending) >= PENDING_MAX or self._pending_bytes >= PENDING_BYTES_MAX:
            self._await_oldest()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, "headrace-publisher")
        self._pending.append((self._pool.submit(self._store.put, uri, data), len(data)))
        self._pending_bytes += len(data)

    def _await_oldest(self) -> None:
        future, nbytes = self._pending.popleft()
        self._pending_bytes -= nbytes
        future.result()

    def flush(self) -> None:
        """Wait until all objects exist and are durable."""
        while self._pending:
            self._await_oldest()
        if self._unflushed and isinstance(self._store, LocalStore):
            self._store.flush(self._folder)
            self._unflushed = False

    def close(self) -> None:
        """Finish the running writes and drop the queued ones. Closing twice does nothing."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        self._pending.clear()
