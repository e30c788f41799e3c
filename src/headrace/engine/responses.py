"""Responses from the outputs of a request's calls."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace.core.tensor import InferRequest, InferResponse, RowFailure, Tensor
from headrace.engine.backend import Backend
from headrace.engine.outputs import OutputCheck, Outputs, select_outputs

_NO_PARAMETERS: Final[Mapping[str, Any]] = {}


class ResponseBuilder:
    """A builder of responses: joins outputs, selects those named by the request, adds the model."""

    def __init__(self, check: OutputCheck, model: str, version: str | None) -> None:
        self._check = check
        self._model = model
        self._version = version

    @classmethod
    def of(cls, backend: Backend) -> "ResponseBuilder":
        """Return the builder for the responses of a loaded model."""
        return cls(backend.check, backend.metadata.name, backend.metadata.version)

    def __call__(
        self,
        parts: Sequence[Outputs],
        request: InferRequest,
        failures: tuple[RowFailure, ...] = (),
        parameters: Mapping[str, Any] = _NO_PARAMETERS,
    ) -> InferResponse:
        """Return one response.

        Raises ModelContractError if the calls differ in names or types, ModelInputError for missing
        outputs.
        """
        outputs = parts[0] if len(parts) == 1 else self._check.joined(parts, request.id)
        if request.outputs and outputs:
            outputs = select_outputs(outputs, request, self._model)
        tensors = tuple([Tensor(name, data) for name, data in outputs.items()])
        return InferResponse(tensors, self._model, self._version, request.id, parameters, failures)
