"""Durable inference jobs: submitted over HTTP, queued in a ledger, run by workers under a lease.

The clients are imported on first use, so that a worker does not need their dependencies.
"""

import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

if TYPE_CHECKING:
    from headrace.jobs.client import AsyncClient as AsyncClient
    from headrace.jobs.client import Client as Client
    from headrace.jobs.client import ClientSettings as ClientSettings

__all__ = ["AsyncClient", "Client", "ClientSettings"]

_MOVED: Final[Mapping[str, str]] = {
    "headrace.jobs.brokers.open": "headrace.jobs.brokers",
    "headrace.jobs.deliverer": "headrace.jobs.notify.deliverer",
    "headrace.jobs.delivery": "headrace.jobs.notify.delivery",
    "headrace.jobs.notifier": "headrace.jobs.notify",
    "headrace.jobs.notifiers": "headrace.jobs.notify",
    "headrace.jobs.notifiers.email": "headrace.jobs.notify.email",
    "headrace.jobs.notifiers.sns": "headrace.jobs.notify.sns",
    "headrace.jobs.notifiers.webhook": "headrace.jobs.notify.webhook",
    "headrace.jobs.outbound.addresses": "headrace.jobs.outbound.urls",
    "headrace.jobs.outbox": "headrace.jobs.notify.delivery",
    "headrace.jobs.secrets": "headrace.jobs.notify.signing",
}
"""The documented modules that moved before 0.1.0, by their old names; kept for one release."""


def __getattr__(name: str) -> Any:
    """Import the job API clients on first use."""
    if name not in __all__:
        raise AttributeError(f"module 'headrace.jobs' has no attribute {name!r}")
    return getattr(import_module("headrace.jobs.client"), name)


class _MovedModules(MetaPathFinder, Loader):
    """An importer that gives a moved module under its old name, with a DeprecationWarning."""

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in _MOVED else None

    @override
    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        warnings.warn(f"{name} is deprecated: import {_MOVED[name]}", DeprecationWarning, stacklevel=2)
        sys.modules[name] = import_module(_MOVED[name])


# First: the parent of a moved module may be a moved package, whose own folder has the new module.
sys.meta_path.insert(0, _MovedModules())
