"""The one life of everything that runs: start, drain, stop."""

from typing import Protocol


class Service(Protocol):
    """Something with threads, processes or connections of its own.

    Guarantees that every implementation gives (`headrace.testing.check_service` proves them):
    `start` twice starts once; `stop` before `start`, and `stop` twice, do nothing; after `stop` returns no
    thread of the service runs. All are called from ordinary threads and may block.
    """

    def start(self) -> None:
        """Begin; returns when ready. Raises what kept it from being ready, leaving nothing running."""
        ...

    def stop(self, *, drain: bool = True) -> None:
        """End. With `drain` what was accepted is finished first; without, it fails with `StoppedError`."""
        ...
