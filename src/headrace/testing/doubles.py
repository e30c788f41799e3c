"""Test doubles: clocks that a test moves, small models, and a store that fails on purpose."""

import random
import threading
from collections.abc import Callable, Collection, Iterator, Mapping

from typing_extensions import override

from headrace.core.clock import Clock
from headrace.core.errors import UnavailableError
from headrace.core.model import Model, RowError
from headrace.core.tensor import Array
from headrace.storage.contract import NO_METADATA, ObjectInfo, Store, Writer

_POLL_S = 0.002
"""Interval in real seconds at which a sleep reads its event; no result depends on it."""


class ManualClock(Clock):
    """A `Clock` whose time passes only by `advance` or, with `auto`, by `sleep`. Thread-safe.

    With ``auto=True`` a sleep advances the clock and returns at once, for loops with back-off.
    Without it, a sleep blocks its thread until another thread advances the clock far enough or sets
    `wake`.
    """

    def __init__(self, start_s: float = 0.0, *, auto: bool = False) -> None:
        self._now_s = start_s
        self._auto = auto
        self._changed = threading.Condition()
        self._sleepers = 0
        self._slept: list[float] = []

    @override
    def now(self) -> float:
        with self._changed:
            return self._now_s

    @override
    def sleep(self, seconds: float, wake: threading.Event | None = None) -> bool:
        with self._changed:
            self._slept.append(seconds)
            if self._auto and not (wake and wake.is_set()):
                self._now_s += seconds
                self._changed.notify_all()
                return False
            until_s = self._now_s + seconds
            self._sleepers += 1
            self._changed.notify_all()
            try:
                while self._now_s < until_s and not (wake and wake.is_set()):
                    self._changed.wait(_POLL_S if wake else None)
            finally:
                self._sleepers -= 1
            return bool(wake and wake.is_set())

    def advance(self, seconds: float) -> None:
        """Advance the clock and end the sleeps whose time has passed."""
        with self._changed:
            self._now_s += seconds
            self._changed.notify_all()

    def wait_for_sleepers(self, count: int = 1, *, timeout_s: float = 10.0) -> None:
        """Block until `count` threads sleep on this clock.

        Prevents an `advance` that comes too early. Raise TimeoutError after `timeout_s` of real
        time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._sleepers >= count, timeout_s):
                raise TimeoutError(
                    f"{self._sleepers} threads sleep on the clock after {timeout_s} s, expected {count}"
                )

    @property
    def slept_s(self) -> tuple[float, ...]:
        """Every requested sleep in seconds, in order."""
        with self._changed:
            return tuple(self._slept)


class ManualWallClock:
    """The time of day in milliseconds since the epoch. Moves only by `advance`. Thread-safe."""

    def __init__(self, start_ms: int = 1_800_000_000_000) -> None:
        self._now_ms = start_ms
        self._callbacks: list[Callable[[int], None]] = []
        self._lock = threading.RLock()

    def now_ms(self) -> int:
        """Return the milliseconds since the epoch."""
        with self._lock:
            return self._now_ms

    def advance(self, ms: int) -> int:
        """Move the clock by `ms`, backwards if negative. Return the new time."""
        with self._lock:
            self._now_ms += ms
            for callback in self._callbacks:
                callback(self._now_ms)
            return self._now_ms

    def subscribe(self, callback: Callable[[int], None]) -> None:
        """Call `callback` with the time, now and after each move.

        For clocks elsewhere, such as in a database.
        """
        with self._lock:
            self._callbacks.append(callback)
            callback(self._now_ms)


_WAIT_S = 30.0
"""Limit of a held call, and of a wait for calls, in real seconds."""


class EchoModel(Model):
    """A model that returns input `x` as output ``output``."""

    @override
    def predict(self, x: Array) -> Array:
        return x


class PickyModel(Model):
    """A model that echoes, but fails on rows whose first value is among `guilty`.

    The whole batch fails or, with `names_rows`, the failing rows are named. `batch_rows` has the
    number of rows of each call, in order.
    """

    def __init__(self, guilty: Collection[float], *, names_rows: bool = False) -> None:
        self.guilty = set(guilty)
        self.names_rows = names_rows
        self.batch_rows: list[int] = []

    def predict(self, x: Array) -> Array:
        """Return the same rows.

        Raise ValueError, or RowError with `names_rows`, if there are guilty rows among them.
        """
        self.batch_rows.append(len(x))
        firsts = x.reshape(len(x), -1)[:, 0].tolist()
        failed = {
            row: f"value {value} is refused" for row, value in enumerate(firsts) if value in self.guilty
        }
        if failed and self.names_rows:
            raise RowError(failed)
        if failed:
            raise ValueError("; ".join(failed.values()))
        return x


class HeldModel(Model):
    """A model that echoes. Its calls block until `release`, so that a test controls their order.

    Several instances share one object by ``lambda: model``. A call that waits for 30 s of real time
    raises TimeoutError.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._begun = 0
        self._allowed = 0

    def predict(self, x: Array) -> Array:
        """Return the same rows after `release`."""
        with self._changed:
            self._begun += 1
            number = self._begun
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._allowed >= number, _WAIT_S):
                raise TimeoutError(f"the call was not released within {_WAIT_S} s")
        return x

    def wait_for_calls(self, count: int) -> None:
        """Block until `count` calls have begun in total."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._begun >= count, _WAIT_S):
                raise TimeoutError(f"{self._begun} calls have begun, expected {count}")

    def release(self, count: int = 1) -> None:
        """Let the next `count` calls return, whether they have begun or not."""
        with self._changed:
            self._allowed += count
            self._changed.notify_all()

    @property
    def calls(self) -> int:
        """The number of calls that have begun."""
        with self._changed:
            return self._begun


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
    def writer(self, uri: str, metadata: Mapping[str, str] = NO_METADATA) -> Writer:
        self._maybe_fail(uri)
        return self._inner.writer(uri, metadata)

    @override
    def metadata(self, uri: str) -> Mapping[str, str]:
        self._maybe_fail(uri)
        return self._inner.metadata(uri)

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
