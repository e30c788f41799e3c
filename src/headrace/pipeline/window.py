"""What was asked and is not delivered yet: a queue in source order whose head is handed out once it is answered."""

import threading
from collections import deque
from concurrent.futures import Future

from headrace.core.tensor import InferResponse
from headrace.pipeline.channel import ChannelClosedError, EndOfChannelError
from headrace.pipeline.feed import Batch

Answer = Future[InferResponse]


class Window:
    """One sender, one receiver.

    `send` blocks while batches of `weight_max` or more are under way, so at most that and one batch are. Answers may
    come in any order; `receive` gives batches in the order of sending, and its thread is not woken before the head is
    answered. What was sent before `finish` or `fail` is received first. After `close`, by the receiver, `send`
    raises `ChannelClosedError`.
    """

    def __init__(self, weight_max: int) -> None:
        self._weight_max = weight_max
        self._under_way: deque[tuple[Batch, Answer | None, int]] = deque()
        self._weight = 0
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._ready = threading.Condition(self._lock)
        self._finished = False
        self._closed = False
        self._error: BaseException | None = None

    def send(self, batch: Batch, answer: Answer | None, weight: int) -> None:
        """Take a place for `batch`; one without an `answer` to wait for is ready at once."""
        with self._lock:
            while self._weight >= self._weight_max and not self._closed:
                self._room.wait()
            if self._closed:
                raise ChannelClosedError
            self._under_way.append((batch, answer, weight))
            self._weight += weight
            if answer is None:
                self._ready.notify()
        if answer is not None:
            answer.add_done_callback(self._answered)

    def _answered(self, answer: Answer) -> None:
        with self._lock:
            if self._under_way and self._under_way[0][1] is answer:
                self._ready.notify()

    def finish(self) -> None:
        """Nothing more will be sent."""
        with self._lock:
            self._finished = True
            self._ready.notify()

    def fail(self, error: BaseException) -> None:
        """Nothing more will be sent, because of `error`: the receiver gets it after what was sent."""
        with self._lock:
            self._error = error
            self._finished = True
            self._ready.notify()

    def close(self) -> None:
        """The receiver wants no more; what is under way is dropped."""
        with self._lock:
            self._closed = True
            self._under_way.clear()
            self._room.notify()
            self._ready.notify()

    def receive(self) -> tuple[Batch, InferResponse | None]:
        """The next batch with its answer, however long that takes.

        Raises what its request failed with, what the sender failed with, or `EndOfChannelError`.
        """
        with self._lock:
            while not self._head_is_ready():
                if self._closed or (self._finished and not self._under_way):
                    raise self._error or EndOfChannelError
                self._ready.wait()
            batch, answer, weight = self._under_way.popleft()
            self._weight -= weight
            self._room.notify()
        return batch, None if answer is None else answer.result()

    def _head_is_ready(self) -> bool:
        if not self._under_way:
            return False
        answer = self._under_way[0][1]
        return answer is None or answer.done()
