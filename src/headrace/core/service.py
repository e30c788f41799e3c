"""The lifecycle of every running component: start, drain, stop."""

from typing import Protocol


class Service(Protocol):
    """A component with threads, processes or connections of its own.

    Every implementation guarantees (`headrace.testing.check_service` verifies this):

    - A second `start` does nothing.
    - `stop` before `start`, and a second `stop`, do nothing.
    - After `stop` returns, no thread of the service runs.

    Ordinary threads call these methods; they may block.
    """

    def start(self) -> None:
        """Start, and return when ready. On an error, raise it and leave nothing running."""
        ...

    def stop(self, *, drain: bool = True) -> None:
        """Stop.

        With `drain`, finish accepted work first; without, accepted work fails with `StoppedError`.
        """
        ...
