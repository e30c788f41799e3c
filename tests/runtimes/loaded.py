"""A model loaded as in an engine, called with one request after another."""

from collections.abc import Callable

from engine.support import pending_request
from headrace.core import InferRequest, InferResponse, Model
from headrace.engine.backend import LocalBackend
from headrace.engine.instance import Instance
from headrace.testing import ManualClock


class LoadedModel:
    """A made, loaded and warmed-up model. The test closes it."""

    def __init__(self, make: Callable[[], Model], name: str) -> None:
        self._backend = LocalBackend(make, name)
        self._instance = Instance(self._backend, name, ManualClock())
        self.inputs = self._backend.inputs
        self.metadata = self._backend.metadata

    def predict(self, request: InferRequest) -> InferResponse:
        self.inputs.check(request)
        return self._instance.predict(pending_request(request), lambda _: None)

    def close(self) -> None:
        self._backend.close()
