"""The contract of a backend: a loaded model, in this process or in another, as an instance calls it.

`headrace.engine.local_backend` runs the model in this process, `headrace.engine.process` in a
process of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from headrace.core.errors import InstanceLostError
from headrace.core.frozen import statically_frozen
from headrace.core.model import Call
from headrace.core.model_traceback import ModelTraceback
from headrace.core.sequence import SequenceLimits
from headrace.core.tensor import Array, ModelMetadata
from headrace.engine.inputs import ModelInputs
from headrace.engine.outputs import OutputCheck, Outputs
from headrace.engine.stepper import SequenceEnding, StepFlags, StepOrder
from headrace.engine.streams import StreamCall

InputParts = Sequence[Mapping[str, Array]]
"""Tensors by input name for each request, to be joined along the first axis."""


@statically_frozen
class CallInputs:
    """The arguments of one call of a model."""

    parts: InputParts
    rows: int
    """Number of rows in all parts."""
    request_id: str = ""
    """Id of the only request, for error messages."""
    orders: Sequence[StepOrder] = ()
    """With a `step`: one order for each row, all of different sequences."""
    requests: Sequence[Any] = ()
    """Opaque requests, which the model takes instead of `parts`."""
    fresh: bool = False
    """True if the arrays belong to the backend."""


@statically_frozen
class CallResult:
    """The checked outputs of one call, and the seconds of its three steps."""

    outputs: Outputs
    input_s: float = 0.0
    infer_s: float = 0.0
    output_s: float = 0.0
    flags: Sequence[StepFlags] = ()
    """With a `step`: the model's decisions for each row."""
    checkpoints: Sequence[bytes | None] = ()
    """With a `step`: the requested checkpoints."""
    responses: Sequence[Any] = ()
    """Responses to opaque requests."""


class Backend(Protocol):
    """One loaded copy of a model. One thread at a time calls `call`; any thread calls the rest."""

    inputs: ModelInputs
    check: OutputCheck
    rows_max: int
    metadata: ModelMetadata
    sequences: SequenceLimits
    """Sequence limits of a model with a `step`."""

    def call(self, inputs: CallInputs, call: Call) -> CallResult:
        """Call `predict` once, or `step` for orders, or the method for opaque requests.

        Raises the exception of the model, ModelContractError for invalid outputs, and
        InstanceLostError when the instance died. SequenceLostError is raised for a sequence whose
        state is not here. If a step raises, no state has changed, and a checkpoint to restore must
        be passed again.
        """
        ...

    def traceback_of(self, error: BaseException) -> ModelTraceback | None:
        """Return the traceback of an unexpected exception that `call` raised, None for other errors."""
        ...

    def end_sequences(self, endings: Sequence[SequenceEnding]) -> None:
        """Drop the states of ended sequences, and report the ends to the model.

        Raises InstanceLostError.
        """
        ...

    def cancel(self) -> None:
        """End the call in progress early, if there is one and the model can be interrupted."""
        ...

    def open_stream(self, stream: StreamCall) -> None:
        """Begin a stream; its pipes carry the rest. Raises StoppedError when the backend is closed."""
        ...

    @property
    def lost(self) -> bool:
        """True if the process of the model is gone, or cannot call it: `restart` before the next call."""
        ...

    @property
    def loss(self) -> InstanceLostError | None:
        """The error that explains the loss of the backend; None while it is not lost."""
        ...

    def on_lost(self, hook: Callable[[], None]) -> None:
        """Set the callback for the loss of the backend, called from any thread at any time.

        The callback is called at once if the backend is lost already.
        """
        ...

    def restart(self) -> None:
        """Load the model of a lost backend again, in one attempt. Raises the error of loading.

        A backend in this process cannot: `BackendFactory.replace` does.
        """
        ...

    def close(self) -> None:
        """Cancel the streams, close the model and end its process or threads. Errors are logged."""
        ...
