"""Errors of checkpoint stores, which reach the clients of a model."""

import logging

from headrace.core.errors import UnavailableError

_log = logging.getLogger("headrace.checkpoints")


def store_failure(model: str, store: str, why: str) -> UnavailableError:
    """Log a failure, and return the error for clients: without the address and the driver's message."""
    _log.warning("the checkpoint store failed", extra={"model": model, "store": store, "why": why})
    return UnavailableError(f"the checkpoint store of model {model}", "it failed; try again later")


def closed_error(model: str) -> UnavailableError:
    """Return the error of a call after `close`."""
    return UnavailableError(f"the checkpoint store of model {model}", "it is closed")
