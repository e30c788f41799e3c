"""The work loop of an instance: take a batch, run it, and handle the death of the instance."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from headrace.batching.adaptive import WaitCondition
from headrace.core.errors import InstanceLostError
from headrace.engine.batch_queue import BlockingConsumer

W = TypeVar("W")
"""The type of one batch of work."""


class WorkLoop(Protocol[W]):
    """The work of one instance with requests of one kind. All methods run in the instance's thread."""

    def take(self, consumer: BlockingConsumer, unavailable: Callable[[], bool]) -> W | WaitCondition | None:
        """Wait for the next batch of work.

        Return a WaitCondition once the instance is `unavailable`, and None when the queue is
        closed.
        """
        ...

    def run_batch(self, batch: W) -> bool:
        """Run a batch and complete its requests. Return True if the model was called.

        Raises InstanceLostError when the instance died meanwhile; `instance_lost` follows.
        """
        ...

    def instance_lost(self, error: InstanceLostError | None) -> bool:
        """Handle the death of the instance: in the call that raised `error`, or without a call.

        Return True if the death was intended, since no client wanted the call.
        """
        ...

    def internal_failure(self, error: BaseException) -> None:
        """Fail the taken requests that have no result, after a defect raised `error`.

        The instance may go on, unless this method raises.
        """
        ...

    def instance_restarted(self) -> None:
        """Resume work after a restart of the instance."""
        ...

    def instance_given_up(self) -> None:
        """Leave the waiting work to the other instances: this one will not be restarted."""
        ...

    def close(self) -> None:
        """Finish what is in progress; no further batch is taken."""
        ...
