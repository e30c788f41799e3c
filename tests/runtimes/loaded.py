"""A model as an engine loads and calls it, asked one request after another."""

from collections.abc import Callable

from engine.support import ticket
from headrace.core import InferRequest, InferResponse, Model
from headrace.engine.backend import LocalBackend
from headrace.engine.instance import Instance
from headrace.testing import ManualClock


class LoadedModel:
    """Made, loaded and warmed up; `close` it."""

    def __init__(self, make: Callable[[], Model], name: str) -> None:
        self._backend = LocalBackend(make, name)
        self._instance = Instance(self._backend, name, ManualClock())
        self.inputs = self._backend.inputs
        self.metadata = self._backend.metadata

    def answer(self, request: InferRequest) -> InferResponse:
        self.inputs.check(request)
        return self._instance.answer(ticket(request), lambda _: None)

    def close(self) -> None:
        self._backend.close()
