"""A store that fails on purpose, for tests of what stands on a store."""

import random
import threading
from collections.abc import Callable, Iterator

from headrace.core.errors import UnavailableError
from headrace.storage.contract import ObjectInfo, Store, Writer


class FlakyStore:
    """Fails on purpose. Same seed and calls, same failures.

    Real stores raise UnavailableError only after all their retries; this one does it whenever it likes.

    Args:
        inner: Does the work.
        fail_every: Every so many calls of a verb one raises UnavailableError; 0 for none.
        cut_reads_at: Every stream raises UnavailableError after that many bytes; None for never.
        seed: Decides whether a failing write was done before its answer was lost (as happens), or not at all.
    """

    def __init__(
        self, inner: Store, *, fail_every: int = 0, cut_reads_at: int | None = None, seed: int = 0
    ) -> None:
        self._inner = inner
        self._fail_every = fail_every
        self._cut_reads_at = cut_reads_at
        self._random = random.Random(seed)  # noqa: S311 - reproducible on purpose
        self._lock = threading.Lock()
        self.calls = 0
        self.failures = 0

    def stream(self, uri: str, *, start: int = 0, etag: str = "") -> Iterator[bytes]:
        """See `Store.stream`; cut after `cut_reads_at` bytes."""
        self._maybe_fail(uri)
        left = self._cut_reads_at
        for chunk in self._inner.stream(uri, start=start, etag=etag):
            if left is not None and len(chunk) >= left:
                yield chunk[:left]
                raise UnavailableError(uri, "cut off on purpose")
            left = None if left is None else left - len(chunk)
            yield chunk

    def get(self, uri: str) -> bytes:
        """See `Store.get`."""
        self._maybe_fail(uri)
        return self._inner.get(uri)

    def get_range(self, uri: str, start: int, length: int, *, etag: str = "") -> bytes:
        """See `Store.get_range`."""
        self._maybe_fail(uri)
        return self._inner.get_range(uri, start, length, etag=etag)

    def put(self, uri: str, data: bytes) -> None:
        """See `Store.put`."""
        self._maybe_fail(uri, lambda: self._inner.put(uri, data))
        self._inner.put(uri, data)

    def put_if_absent(self, uri: str, data: bytes) -> None:
        """See `Store.put_if_absent`."""
        self._maybe_fail(uri, lambda: self._inner.put_if_absent(uri, data))
        self._inner.put_if_absent(uri, data)

    def writer(self, uri: str) -> Writer:
        """See `Store.writer`; fails when it is opened, never later."""
        self._maybe_fail(uri)
        return self._inner.writer(uri)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `Store.list`."""
        self._maybe_fail(prefix)
        return self._inner.list(prefix)

    def head(self, uri: str) -> ObjectInfo:
        """See `Store.head`."""
        self._maybe_fail(uri)
        return self._inner.head(uri)

    def delete(self, uri: str) -> None:
        """See `Store.delete`."""
        self._maybe_fail(uri, lambda: self._inner.delete(uri))
        self._inner.delete(uri)

    def _maybe_fail(self, uri: str, write: Callable[[], None] | None = None) -> None:
        with self._lock:
            self.calls += 1
            if not self._fail_every or self.calls % self._fail_every:
                return
            self.failures += 1
            done = write is not None and self._random.random() < 0.5
        if done and write is not None:
            write()
        raise UnavailableError(uri, "fails on purpose" + (" after it was done" if done else ""))
