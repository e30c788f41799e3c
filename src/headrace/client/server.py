"""What can be asked of a model server as a whole, by whatever protocol: `server_rest` and `oip_grpc` implement it."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol, Self

from headrace.core.sequence import SequenceListing
from headrace.core.statistics import ModelIndexEntry, ModelStatistics
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata


@dataclass(frozen=True, slots=True)
class ModelAddress:
    """A model of a server; an empty version is the one that the server chooses."""

    name: str
    version: str = ""


class ModelServer(Protocol):
    """A server elsewhere, asked once for each question: nothing is retried. Use it as a context manager, in one loop.

    All raise EndpointUnavailableError when it is not reached or does not answer in time, EndpointRefusedError when it says
    no, and EndpointError when its answer is none of the protocol's. Cancelling a question cancels it at the server.
    """

    url: str
    """The server's root, as it is asked."""

    async def __aenter__(self) -> Self:
        """Open the connections."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """Close them."""
        ...

    async def metadata(self, model: ModelAddress) -> ModelMetadata:
        """What the server says of a model."""
        ...

    async def infer(self, model: ModelAddress, request: InferRequest, *, binary: bool) -> InferResponse:
        """The response to a request; `binary` sends tensors as raw bytes where the protocol leaves the choice."""
        ...

    def stream(self, model: ModelAddress, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        """Responses as they come. `aclose` it whatever happens: that cancels what is still to come."""
        ...

    async def index(self) -> tuple[ModelIndexEntry, ...]:
        """Every version of every model of its repository."""
        ...

    async def load(self, model: str) -> None:
        """Load a model, or load it again."""
        ...

    async def unload(self, model: str) -> None:
        """Unload every version of a model."""
        ...

    async def statistics(self, model: str = "") -> tuple[ModelStatistics, ...]:
        """Figures since loading, of all models or of one."""
        ...

    async def sequences(self, model: ModelAddress, *, most: int) -> SequenceListing:
        """The sequences of a model, at most so many, the oldest first. UnsupportedError over gRPC."""
        ...

    async def cancel_sequence(self, model: ModelAddress, id: str) -> None:
        """End a sequence, with all that waits for it. EndpointRefusedError where there is none; UnsupportedError over gRPC."""
        ...
