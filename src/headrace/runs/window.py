"""The submitted batches: a queue in source order whose head is delivered when it is ready."""

import threading
from collections import deque
from concurrent.futures import Future

from headrace.core.tensor import InferResponse
from headrace.runs.channel import ChannelClosedError, EndOfChannelError
from headrace.runs.feed import Batch

ResponseFuture = Future[InferResponse]


class Window:
    """A queue with one sender and one receiver.

    `send` blocks while the pending batches weigh `weight_max` or more, so the window holds at most
    that weight and one batch. Responses may arrive in any order. `receive` returns batches in the
    order of `send`, and its thread wakes only when the head is ready. The receiver gets batches
    sent before `finish` or `fail` first. After `close` by the receiver, `send` raises
    ChannelClosedError.
    """

    def __init__(self, weight_max: int) -> None:
        self._weight_max = weight_max
        self._pending: deque[tuple[Batch, ResponseFuture | None, int]] = deque()
        self._weight = 0
        self._lock = threading.Lock()
        self._not_full = threading.Condition(self._lock)
        self._ready = threading.Condition(self._lock)
        self._finished = False
        self._closed = False
        self._error: BaseException | None = None

    def send(self, batch: Batch, future: ResponseFuture | None, weight: int) -> None:
        """Add a batch. A batch without a `future` is ready at once."""
        with self._lock:
            while self._weight >= self._weight_max and not self._closed:
                self._not_full.wait()
            if self._closed:
                raise ChannelClosedError
            self._pending.append((batch, future, weight))
            self._weight += weight
            if future is None:
                self._ready.notify()
        if future is not None:
            future.add_done_callback(self._on_done)

    def _on_done(self, future: ResponseFuture) -> None:
        with self._lock:
            if self._pending and self._pending[0][1] is future:
                self._ready.notify()

    def finish(self) -> None:
        """Mark the end of the batches."""
        with self._lock:
            self._finished = True
            self._ready.notify()

    def fail(self, error: BaseException) -> None:
        """Mark the end of the batches with an error. The receiver gets it after all batches."""
        with self._lock:
            self._error = error
            self._finished = True
            self._ready.notify()

    def close(self) -> None:
        """Stop receiving, and drop the pending batches."""
        with self._lock:
            self._closed = True
            self._pending.clear()
            self._not_full.notify()
            self._ready.notify()

    def receive(self) -> tuple[Batch, InferResponse | None]:
        """Return the next batch with its response. Wait as long as necessary.

        Raises:
            EndOfChannelError: The sender finished. If the request or the sender failed, its error is raised
                instead.
        """
        with self._lock:
            while not self._head_is_ready():
                if self._closed or (self._finished and not self._pending):
                    raise self._error or EndOfChannelError
                self._ready.wait()
            batch, future, weight = self._pending.popleft()
            self._weight -= weight
            self._not_full.notify()
        return batch, None if future is None else future.result()

    def _head_is_ready(self) -> bool:
        if not self._pending:
            return False
        future = self._pending[0][1]
        return future is None or future.done()
