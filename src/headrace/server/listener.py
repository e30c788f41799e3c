"""The contract of listeners: a server opens and stops each of its sockets through it."""

from typing import Protocol


class Listener(Protocol):
    """A listening socket and its protocol.

    The event loop of the server runs both `start` and `stop`.
    """

    @property
    def address(self) -> str:
        """The address as a URL. It is known before `start`, except for a port that the system chooses."""
        ...

    async def start(self) -> None:
        """Accept requests from now on.

        Raises:
            ConfigError: The listener cannot be opened.
        """
        ...

    async def stop(self, grace_s: float) -> None:
        """Accept no more requests, finish the running ones, and cancel them after `grace_s` seconds.

        A second call meanwhile cancels them at once.
        """
        ...
