"""A watch over a growing source: poll it, and score each new object once.

It is a loop around `Run.append`. A test can call `tick` directly.
"""

import threading
from collections.abc import Callable

from headrace.core.clock import Clock
from headrace.core.errors import EmptySourceError, NotFoundError
from headrace.reports.report import Report
from headrace.runs.run import Run
from headrace.storage.contract import ObjectInfo


class SourceWatcher:
    """A poller of a run's source with the interval `poll_s`.

    Objects in cloud stores appear whole. A local file may still be growing, so it is scored when
    two successive polls see it unchanged.
    """

    def __init__(self, run: Run, *, poll_s: float, clock: Clock) -> None:
        self._run = run
        self._poll_s = poll_s
        self._clock = clock
        self._stop = threading.Event()
        self._last_etags: dict[str, str] = {}

    def tick(self) -> Report | None:
        """Poll once: score new objects and return the report, or None without new objects."""
        try:
            listed = self._run.select()
        except (EmptySourceError, NotFoundError):
            listed = []
        ready = [i for i in listed if self._is_unchanged(i)]
        self._last_etags = {i.uri: i.etag for i in listed}
        return self._run.append(ready)

    def _is_unchanged(self, info: ObjectInfo) -> bool:
        local = "://" not in info.uri or info.uri.startswith("file:")
        return not local or self._last_etags.get(info.uri) == info.etag

    def serve(self, report: Callable[[Report], None]) -> None:
        """Poll until `stop`. Call `report` after every poll that scored objects."""
        while not self._stop.is_set():
            done = self.tick()
            if done is not None:
                report(done)
            self._clock.sleep(self._poll_s, self._stop)

    def stop(self) -> None:
        """Stop after the pending batches are delivered and committed."""
        self._stop.set()
        self._run.drain()
