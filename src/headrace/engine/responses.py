"""Responses from the outputs of a request's calls."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace.core.tensor import InferRequest, InferResponse, RowFailure, Tensor, TensorSpec, empty_array
from headrace.engine.backend import Backend
from headrace.engine.outputs import OutputCheck, Outputs, select_outputs

_NO_PARAMETERS: Final[Mapping[str, Any]] = {}


class ResponseBuilder:
    """A builder of responses: joins outputs, selects those named by the request, adds the model.

    A request of zero rows gets outputs of zero rows, without a call of the model. Outputs without a
    declared shape have the row shape of the first response; before that, undeclared outputs are
    unknown and missing. Any thread.
    """

    def __init__(
        self, check: OutputCheck, model: str, version: str | None, specs: Sequence[TensorSpec] = ()
    ) -> None:
        self._check = check
        self._model = model
        self._version = version
        self._specs = specs
        self._first: Outputs = {}
        """Zero rows of the first outputs."""
        self.needs_outputs = not specs or any(spec.shape is None for spec in specs)
        """True until `record_outputs` was called, if the declaration does not say all shapes."""

    @classmethod
    def of(cls, backend: Backend) -> "ResponseBuilder":
        """Return the builder for the responses of a loaded model."""
        metadata = backend.metadata
        return cls(backend.check, metadata.name, metadata.version, metadata.outputs)

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
        if not outputs:
            outputs = self._zero_rows(request)
        elif self.needs_outputs:
            self.record_outputs(outputs)
        if request.outputs and outputs:
            outputs = select_outputs(outputs, request, self._model)
        tensors = tuple([Tensor(name, data) for name, data in outputs.items()])
        return InferResponse(tensors, self._model, self._version, request.id, parameters, failures)

    def record_outputs(self, outputs: Outputs) -> None:
        """Record the row shapes of outputs, for later requests of zero rows."""
        # Copies, since a view would keep the outputs in memory.
        self._first = {name: data[:0].copy() for name, data in outputs.items()}
        self.needs_outputs = False

    def _zero_rows(self, request: InferRequest) -> Outputs:
        """Return the outputs for zero rows; none if the request has rows, or no inputs."""
        if not request.inputs or request.inputs[0].data.shape[:1] != (0,):
            return {}
        outputs = dict(self._first)
        for spec in self._specs:
            if spec.shape is not None or spec.name not in outputs:
                outputs[spec.name] = empty_array(spec)
        return outputs
