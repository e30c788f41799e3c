"""Backends of models with a step, orders for them, and calls that are cancelled."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.core.model import Call
from headrace.engine.backend import Backend
from headrace.engine.local_backend import LocalBackend
from headrace.engine.process.parent import ProcessBackend
from headrace.engine.recipe import make_recipe
from headrace.engine.settings import ServeSettings
from headrace.engine.stepper import StepOrder
from servers.polling import wait_until


def make_backend(kind: str, model: Any, **serve: Any) -> Backend:
    """Return a model in this process ("local"), or in one of its own ("process")."""
    settings = ServeSettings(**serve)
    if kind == "local":
        return LocalBackend(model, "m", settings=settings)
    return ProcessBackend(make_recipe(model, "m"), "m", settings=settings)


def order(number: int, id: str = "s", steps: int = 0, **flags: Any) -> StepOrder:
    """Return the order of a step, without flags by default."""
    values: dict[str, Any] = {
        "again": False, "end": False, "parameters": {}, "restore": None, "save": False, **flags
    }  # fmt: skip
    return StepOrder(number, id, steps, **values)


class _CancelledAfterBegin(Call):
    deadline_s = None
    cancelled = False


@contextmanager
def cancelled_call(backend: Backend, folder: Path) -> Iterator[Call]:
    """Yield a call that is cancelled once its model has made the file `began` in a folder."""
    call = _CancelledAfterBegin()

    def leave() -> None:
        wait_until((folder / "began").exists)
        call.cancelled = True
        backend.cancel()

    (folder / "began").unlink(missing_ok=True)
    leaver = threading.Thread(target=leave)
    leaver.start()
    try:
        yield call
    finally:
        leaver.join()
