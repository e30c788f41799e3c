"""The contract of clients of a whole model server.

`model_server_rest` and `model_server_grpc` implement it.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol, Self

from headrace.core.sequence import SequenceListing
from headrace.core.statistics import InstanceStatus, ModelIndexEntry, ModelStatistics
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata


@dataclass(frozen=True, slots=True)
class ModelAddress:
    """A model of a server. An empty version leaves the choice to the server."""

    name: str
    version: str = ""


class ModelServerClient(Protocol):
    """A client of a model server: a context manager, for one event loop. It never retries.

    Methods raise EndpointUnavailableError if the server is not reached or does not respond in time,
    EndpointRefusedError if it refuses, and EndpointError if its response violates the protocol.
    Cancelling a call cancels it at the server.
    """

    url: str
    """The root URL of the server."""

    async def __aenter__(self) -> Self:
        """Open the connections."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """Close the connections."""
        ...

    async def metadata(self, model: ModelAddress) -> ModelMetadata:
        """Return the metadata of a model."""
        ...

    async def infer(self, model: ModelAddress, request: InferRequest, *, binary: bool) -> InferResponse:
        """Return the response to a request.

        `binary` sends raw tensor bytes if the protocol leaves the choice.
        """
        ...

    def stream(self, model: ModelAddress, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        """Yield responses as they arrive.

        The caller must `aclose` the generator: that cancels the rest.
        """
        ...

    async def index(self) -> tuple[ModelIndexEntry, ...]:
        """Return every version of every model in the server's repository."""
        ...

    async def load(self, model: str) -> None:
        """Load a model, or reload it."""
        ...

    async def unload(self, model: str) -> None:
        """Unload all versions of a model."""
        ...

    async def statistics(self, model: str = "") -> tuple[ModelStatistics, ...]:
        """Return the statistics since loading, of one model or of all."""
        ...

    async def instances(self, model: ModelAddress) -> InstanceStatus:
        """Return the numbers of instances of a model. Raises UnsupportedError over gRPC."""
        ...

    async def set_instances(
        self, model: ModelAddress, instances: int, instances_max: int | None = None
    ) -> InstanceStatus:
        """Change the number of instances of a model while it serves.

        With `instances_max`, the server chooses the number by load, from `instances` to
        `instances_max`. Returns once new instances are ready. Raises UnsupportedError over gRPC.
        """
        ...

    async def sequences(self, model: ModelAddress, *, limit: int) -> SequenceListing:
        """Return up to `limit` sequences of a model, oldest first.

        Raises UnsupportedError over gRPC.
        """
        ...

    async def cancel_sequence(self, model: ModelAddress, id: str, namespace: str | None = None) -> None:
        """End a sequence and its waiting requests. `namespace` defaults to the tenant of the API key.

        Raises EndpointRefusedError if it does not exist, UnsupportedError over gRPC.
        """
        ...
