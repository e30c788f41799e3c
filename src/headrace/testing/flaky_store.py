"""A store that fails on purpose, for tests of code that uses a store."""

import random
import threading
from collections.abc import Callable, Iterator

from typing_extensions import override

from headrace.core.errors import UnavailableError
from headrace.storage.contract import ObjectInfo, Store, Writer


class FlakyStore(Store):
    """A store that fails on purpose. The same seed and calls give the same failures.

    A writer fails when it is opened, never later. Other stores raise UnavailableError only after
    all their retries; this store has none.

    Args:
        inner: The store that performs the operations.
        fail_every: One of so many calls raises UnavailableError; 0 for none.
        cut_reads_at: Every stream raises UnavailableError after so many bytes; None for never.
        seed: Decides whether a failing write happens before its response is lost, or not at all.
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

    @override
    def stream(self, uri: str, *, start: int = 0, etag: str = "") -> Iterator[bytes]:
        self._maybe_fail(uri)
        left = self._cut_reads_at
        for chunk in self._inner.stream(uri, start=start, etag=etag):
            if left is not None and len(chunk) >= left:
                yield chunk[:left]
                raise UnavailableError(uri, "the stream was cut off on purpose")
            left = None if left is None else left - len(chunk)
            yield chunk

    @override
    def get(self, uri: str) -> bytes:
        self._maybe_fail(uri)
        return self._inner.get(uri)

    @override
    def get_range(self, uri: str, start: int, length: int, *, etag: str = "") -> bytes:
        self._maybe_fail(uri)
        return self._inner.get_range(uri, start, length, etag=etag)

    @override
    def put(self, uri: str, data: bytes) -> None:
        self._maybe_fail(uri, lambda: self._inner.put(uri, data))
        self._inner.put(uri, data)

    @override
    def put_if_absent(self, uri: str, data: bytes) -> None:
        self._maybe_fail(uri, lambda: self._inner.put_if_absent(uri, data))
        self._inner.put_if_absent(uri, data)

    @override
    def writer(self, uri: str) -> Writer:
        self._maybe_fail(uri)
        return self._inner.writer(uri)

    @override
    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._maybe_fail(prefix)
        return self._inner.list(prefix)

    @override
    def head(self, uri: str) -> ObjectInfo:
        self._maybe_fail(uri)
        return self._inner.head(uri)

    @override
    def delete(self, uri: str) -> None:
        self._maybe_fail(uri, lambda: self._inner.delete(uri))
        self._inner.delete(uri)

    def _maybe_fail(self, uri: str, write: Callable[[], None] | None = None) -> None:
        with self._lock:
            self.calls += 1
            if not self._fail_every or self.calls % self._fail_every:
                return
            self.failures += 1
            written = write is not None and self._random.random() < 0.5
        if written and write is not None:
            write()
        raise UnavailableError(uri, "failed on purpose" + (" after the write" if written else ""))
