"""A model in a process of its own: its crash, its memory, and its hold on Python's lock touch nobody else.

Arrays go through memory that both processes see (`engine.shared_arrays`), what is said of them through a socket
(`engine.call_socket`), streams and cancellations through another (`engine.wire`). Nothing is pickled.
"""

import itertools
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, Final, NamedTuple

from headrace.core.call import Call, current_call
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import ConfigError, DataError, InstanceLostError, ModelInputError, StoppedError
from headrace.core.model import ModelRecipe
from headrace.core.sequence import SequenceLimits
from headrace.core.tensor import Array, InferRequest, InferResponse, ModelMetadata
from headrace.engine.backend import Called, Parts
from headrace.engine.bootstrap import Bootstrap, loaded_of
from headrace.engine.call_socket import pack
from headrace.engine.grace import Grace
from headrace.engine.inputs import ModelInputs
from headrace.engine.link import Link
from headrace.engine.outputs import OutputCheck
from headrace.engine.settings import ServeSettings
from headrace.engine.shared_arrays import Memory, Placed, read_arrays, write_arrays
from headrace.engine.step_codec import joined, parted, told_endings, told_orders
from headrace.engine.stepper import Ending, StepOrder, Stepped
from headrace.engine.streams import StreamCall
from headrace.engine.told import error_of

_log = logging.getLogger("headrace.engine")
_DEFAULTS = ServeSettings()
_NOTHING: Final[Mapping[str, Array]] = {}


class _Reply(NamedTuple):
    """What a call came back with."""

    says: dict[str, Any]
    outputs: dict[str, Array]
    beside: dict[str, Array]
    """Where it lies, until the next call."""
    times_s: tuple[float, float, float]
    """Of input, model and output."""


class ProcessBackend:
    """Implements `headrace.engine.backend.Backend`. Make it in the thread that calls it: the process ends with it.

    What `predict` is given lies in memory that is the model's to write into; an array that it keeps stays as it is,
    since the next call is then given other memory. What it returns is copied.

    A process that dies, and one that is killed since a call took longer than `call_timeout_s`, or went on for longer than
    `cancel_grace_s` when nobody wanted it any more, makes that call raise InstanceLostError, and ends its streams with it;
    what it had started is killed with it. An error of the model arrives as its kind and text: headrace's
    own errors and MemoryError as what they were, others as `ToldError`.
    """

    inputs: ModelInputs
    check: OutputCheck
    rows_max: int
    metadata: ModelMetadata
    sequences: SequenceLimits

    def __init__(
        self,
        recipe: ModelRecipe,
        name: str,
        *,
        clock: Clock | None = None,
        fingerprint: str = "",
        version: str | None = None,
        settings: ServeSettings = _DEFAULTS,
    ) -> None:
        if not hasattr(os, "pidfd_open"):
            raise ConfigError(f"model {name}: a process of its own needs Linux; set isolation to thread")
        self._name = name
        self._clock = clock or SystemClock()
        self._timeout_s = settings.call_timeout_s
        grace_s = settings.cancel_grace_s
        self._grace_s = None if grace_s == inf else grace_s
        self._boot = Bootstrap(
            recipe=recipe,
            name=name,
            version=version,
            fingerprint=fingerprint,
            settings=settings,
            log_level=min(
                logging.getLogger(logger).getEffectiveLevel() for logger in (None, "headrace.engine")
            ),
            parent_pid=os.getpid(),
        )
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._calling: tuple[int, Call] | None = None
        self._grace: Grace | None = None
        """What is left to the call in progress, once nobody wants it any more."""
        self._on_lost: Callable[[], None] | None = None
        self._closed = False
        self._link: Link | None = None
        self._start()

    def _start(self) -> None:
        link = Link(self._boot, self._clock, self._lost)
        self.metadata, self.inputs, self.sequences = loaded_of(link.loaded)
        if self.metadata.whole_requests:
            link.close()
            raise ConfigError(
                f"model {self._name} takes whole requests, which cannot be sent to a process of its own; set isolation to thread"
            )
        self.check = OutputCheck(self._name, self.metadata.outputs)
        self.rows_max = self.metadata.max_batch_rows
        link.calls.limit(self._timeout_s)
        self._link = link

    @property
    def pid(self) -> int | None:
        """The number of the process, while there is one."""
        link = self._link
        return None if link is None else link.pid

    # Calls

    def call_request(self, request: InferRequest, call: Call) -> InferResponse:
        """See `Backend`; models that need it are refused before they are asked."""
        raise NotImplementedError

    def call(self, parts: Parts, rows: int, request: str, call: Call, *, fresh: bool) -> Called:
        """See `Backend`."""
        del fresh
        reply = self._exchanged(parts, {"rows": rows, "request": request}, call)
        return Called(reply.outputs, *reply.times_s)

    def step(self, parts: Parts, orders: Sequence[StepOrder], call: Call, *, fresh: bool = False) -> Stepped:
        """See `Backend`: the states are in the process, and end with it.

        Raises ModelInputError also for ids and parameters that are no plain values, as JSON has them.
        """
        del fresh
        lengths, checkpoints = joined([order.restore for order in orders])
        message = {"orders": told_orders(orders), "lengths": lengths}
        reply = self._exchanged(parts, message, call, checkpoints)
        said = [(goes_on, silent, ends) for goes_on, silent, ends in reply.says["said"]]
        saved = parted(reply.says["lengths"], reply.beside, len(orders))
        return Stepped(reply.outputs, said, saved, *reply.times_s)

    def end_sequences(self, endings: Sequence[Ending]) -> None:
        """See `Backend`: one message for all of them."""
        self._asked(self._alive(), {"endings": told_endings(endings)}, current_call())

    def _exchanged(
        self, parts: Parts, message: dict[str, Any], call: Call, beside: Mapping[str, Array] = _NOTHING
    ) -> _Reply:
        link = self._alive()
        began_s = self._clock.now()
        placed = self._written(link, parts, beside)
        count = len(placed) - len(beside)
        message |= {"deadline_s": call.deadline_s, "arrays": placed[:count], "beside": placed[count:]}
        sent_s = self._clock.now()
        says = self._asked(link, message, call)
        came_s = self._clock.now()
        returned = link.returned
        assert returned is not None, "the first answer brings it"
        outputs = read_arrays(returned, says["arrays"], copy=True)
        found = read_arrays(returned, says.get("beside", ()), copy=False)
        # Half of what neither side has spent is the way there, half the way back.
        way_s = max(0.0, came_s - sent_s - says["took_s"]) / 2
        input_s = sent_s - began_s + way_s + says["input_s"]
        output_s = self._clock.now() - came_s + way_s + says["output_s"]
        return _Reply(says, outputs, found, (input_s, says["infer_s"], output_s))

    def _alive(self) -> Link:
        link = self._link
        if link is None:
            raise InstanceLostError(
                self._name, "its process died and is being started again: ask again later"
            )
        if link.lost:
            raise link.lost_error()
        return link

    def _written(self, link: Link, parts: Parts, beside: Mapping[str, Array]) -> list[Placed]:
        try:
            return write_arrays(link.arena, parts, beside)
        except (TypeError, DataError) as error:
            raise self._unsendable(error) from error

    def _unsendable(self, error: Exception) -> ModelInputError:
        return ModelInputError(self._name, f"a request cannot go to its process: {error}")

    def _asked(self, link: Link, message: dict[str, Any], call: Call) -> dict[str, Any]:
        number = next(self._numbers)
        try:
            data = pack({**message, "call": number, "arena": link.arena.size})
        except TypeError as error:
            raise self._unsendable(error) from error
        with self._lock:
            self._calling = (number, call)
        try:
            link.calls.send_packed(data, link.arena.new_fd())
            if call.cancelled:
                # Whoever asked has gone while nobody could be told.
                self.cancel()
            reply, fd = link.calls.receive()
        except TimeoutError:
            link.kill(
                "timeout",
                f"a call took longer than call_timeout_s ({self._timeout_s} s), so its process was killed",
            )
            raise link.lost_error() from None
        except EOFError:
            raise link.lost_error() from None
        finally:
            with self._lock:
                self._calling = None
                grace, self._grace = self._grace, None
            if grace is not None:
                grace.end()
        if fd is not None:
            try:
                link.returned = Memory(fd, reply["arena"])
            finally:
                os.close(fd)
        if reply["kept"]:
            link.arena.drop()
        if "error" in reply:
            raise error_of(reply["error"])
        return reply

    def cancel(self) -> None:
        """See `Backend`: the model is told (`current_call`), and an asynchronous `predict` is cancelled."""
        with self._lock:
            link, calling = self._link, self._calling
            # Another call may have begun since whoever asks this looked.
            if link is None or calling is None or not calling[1].cancelled:
                return
            link.cancel(calling[0])
            if self._grace is None and self._grace_s is not None:
                self._grace = self._begun_grace(link, calling[0], self._grace_s)

    def _begun_grace(self, link: Link, number: int, grace_s: float) -> Grace | None:
        name = f"headrace-{self._name}-grace"
        try:
            return Grace(self._clock, grace_s, name, lambda: self._kill_unwanted(link, number))
        except (
            RuntimeError
        ) as error:  # no thread can be had: the call goes on, and the next who leaves tries again
            _log.warning("a call that nobody wants cannot be ended: %s", error, extra={"model": self._name})
            return None

    def _kill_unwanted(self, link: Link, number: int) -> None:
        """The time of a call is over that nobody wants; nothing when it has ended meanwhile."""
        # Under the lock, so that no other call begins that would die of it.
        with self._lock:
            if self._calling is None or self._calling[0] != number:
                return
            link.kill(
                "killed",
                f"nobody wanted its call any more, which had not ended {self._grace_s} s (cancel_grace_s) after it was told "
                "so: it was killed",
            )

    # Streams

    def open_stream(self, stream: StreamCall) -> None:
        """See `Backend`. Raises InstanceLostError while there is no process."""
        if self._closed:
            raise StoppedError(f"model {self._name} is stopping")
        self._alive().open_stream(stream)

    # Life

    @property
    def lost(self) -> bool:
        """See `Backend`."""
        return not self._closed and (self._link is None or self._link.lost)

    def on_lost(self, hook: Callable[[], None]) -> None:
        """See `Backend`."""
        self._on_lost = hook
        if self.lost:
            hook()

    def _lost(self) -> None:
        hook = self._on_lost
        if hook is not None:
            hook()

    def restart(self) -> None:
        """See `Backend`: one attempt. Raises StoppedError once closed."""
        if self._closed:
            raise StoppedError(f"model {self._name} is closed")
        link, self._link = self._link, None
        if link is not None:
            link.close()
        self._start()

    def close(self) -> None:
        """See `Backend`: the model is given CLOSE_S to close, then its process is ended."""
        self._closed = True
        with self._lock:
            link, self._link = self._link, None
        if link is not None:
            link.close()
