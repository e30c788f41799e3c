"""Makes responses of what the steps of a request gave."""

from collections.abc import Mapping
from typing import Any

from headrace.core.tensor import InferRequest, InferResponse, RowFailure, Tensor
from headrace.engine.outputs import OutputCheck, Outputs, wanted


class Responder:
    """Joins rows of outputs, takes those that the request asks for, and says whose they are."""

    def __init__(self, check: OutputCheck, model: str, version: str | None) -> None:
        self._check = check
        self._model = model
        self._version = version

    def __call__(
        self,
        given: list[Outputs],
        request: InferRequest,
        failures: tuple[RowFailure, ...],
        parameters: Mapping[str, Any],
    ) -> InferResponse:
        """One response. Raises ModelContractError where steps differ in names or types, ModelInputError for outputs not there."""
        outputs = given[0] if len(given) == 1 else self._check.joined(given, request.id)
        if request.outputs and outputs:
            outputs = wanted(outputs, request, self._model)
        tensors = tuple([Tensor(name, data) for name, data in outputs.items()])
        return InferResponse(tensors, self._model, self._version, request.id, parameters, failures)
