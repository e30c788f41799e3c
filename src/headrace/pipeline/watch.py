"""A prefix that keeps growing: polls it, and scores what is new, once each.

A thin loop around `Run.append`; the tick is a method that a test can call.
"""

import threading
from collections.abc import Callable

from headrace.core.clock import Clock
from headrace.core.errors import EmptySourceError, NotFoundError
from headrace.pipeline.plan import select_objects
from headrace.pipeline.report import Report
from headrace.pipeline.run import Run
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores


class Watch:
    """Polls `run`'s source every `poll_s` until told to stop.

    Objects in cloud stores appear whole. A local file may still be being written: it is taken when two polls in
    a row see it unchanged.
    """

    def __init__(self, run: Run, stores: Stores, *, poll_s: float, clock: Clock) -> None:
        self._run = run
        self._stores = stores
        self._poll_s = poll_s
        self._clock = clock
        self._stop = threading.Event()
        self._seen: dict[str, str] = {}

    def tick(self) -> Report | None:
        """One poll: score what is new; None when nothing was."""
        try:
            listed = select_objects(self._run.source, self._stores)
        except (EmptySourceError, NotFoundError):
            listed = []
        ready = [i for i in listed if self._settled(i)]
        self._seen = {i.uri: i.etag for i in listed}
        return self._run.append(ready)

    def _settled(self, info: ObjectInfo) -> bool:
        local = "://" not in info.uri or info.uri.startswith("file:")
        return not local or self._seen.get(info.uri) == info.etag

    def serve(self, report: Callable[[Report], None]) -> None:
        """Poll until `stop`; `report` is called after every poll that scored something."""
        while not self._stop.is_set():
            done = self.tick()
            if done is not None:
                report(done)
            self._clock.sleep(self._poll_s, self._stop)

    def stop(self) -> None:
        """End after what is under way is delivered and committed."""
        self._stop.set()
        self._run.drain()
