"""Jobs that outlive a request: submitted now, queued durably, worked on under a lease, fetched later."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.jobs.client import AsyncClient as AsyncClient
    from headrace.jobs.client import Client as Client
    from headrace.jobs.client import ClientSettings as ClientSettings

__all__ = ["AsyncClient", "Client", "ClientSettings"]


def __getattr__(name: str) -> Any:
    """Load a client at its first use: whoever only works on jobs needs none."""
    if name not in __all__:
        raise AttributeError(f"module 'headrace.jobs' has no attribute {name!r}")
    return getattr(import_module("headrace.jobs.client"), name)
