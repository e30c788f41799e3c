"""Durable inference jobs: submitted over HTTP, queued in a ledger, run by workers under a lease.

The clients are imported on first use, so that a worker does not need their dependencies.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.jobs.client import AsyncClient as AsyncClient
    from headrace.jobs.client import Client as Client
    from headrace.jobs.client import ClientSettings as ClientSettings

__all__ = ["AsyncClient", "Client", "ClientSettings"]


def __getattr__(name: str) -> Any:
    """Import the job API clients on first use."""
    if name not in __all__:
        raise AttributeError(f"module 'headrace.jobs' has no attribute {name!r}")
    return getattr(import_module("headrace.jobs.client"), name)
