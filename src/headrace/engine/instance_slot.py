"""The place of one instance in a session."""

import threading
from collections.abc import Callable
from weakref import WeakSet

from headrace.engine.backend import Backend
from headrace.engine.counters import EngineCounters
from headrace.engine.outputs import ChunkedResponse
from headrace.engine.streams import StreamCall


class InstanceSlot:
    """The place of one instance: its thread, its backend, its counters and its streams.

    The place of a removed instance can be used again; its counters go on. `EngineSession.changed` is
    held where the other attributes change.
    """

    def __init__(self, number: int, counters: EngineCounters, *, is_member: bool) -> None:
        self.number = number
        """The index of the slot in its session."""
        self.counters = counters
        self.streams: set[StreamCall] = set()
        """Open streams."""
        self.unopened = WeakSet[ChunkedResponse]()
        """Responses of the instance with chunks that no client has opened yet."""
        self.thread: threading.Thread | None = None
        self.is_member = is_member
        """False before an added instance is loaded, and from its removal on."""
        self.reset()

    def reset(self) -> None:
        """Prepare the slot for an instance that is to be loaded."""
        self.backend: Backend | None = None
        self.cancel_if_unwanted: Callable[[], None] = lambda: None
        """Cancels the call in progress if no client wants it any more; called when a client has
        left.
        """
        self.restart_now = threading.Event()
        """Set by a removal and by a stop: a restart of the instance does not wait any longer."""
        self.is_loaded = False
        """True once the instance is ready, or has failed with `load_error`."""
        self.load_error: BaseException | None = None
        self.alive = False
        self.given_up = False
        self.is_ended = False
        """True once the thread calls the model no more."""

    @property
    def is_draining(self) -> bool:
        """True while a removed instance finishes its work."""
        return self.is_loaded and not (self.is_member or self.is_ended or self.given_up)
