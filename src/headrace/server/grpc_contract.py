"""What the gRPC methods ask of their neighbours: a dataplane that answers, a gate, and a carrier of calls."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.core.statistics import ModelIndexEntry, ModelStatistics
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata
from headrace.server.security import Role


class Access(Protocol):
    """Who may do what."""

    def check(self, authorization: str | None, role: Role, /) -> object:
        """Raises UnauthenticatedError or ForbiddenError; `authorization` is the header's whole value."""
        ...


class Dataplane(Protocol):
    """What answers, on the event loop that carries the calls. It raises the errors of `headrace.core.errors`."""

    @property
    def name(self) -> str:
        """Of the server."""
        ...

    @property
    def version(self) -> str:
        """Of the server."""
        ...

    @property
    def extensions(self) -> tuple[str, ...]:
        """Of the protocol, that the server has."""
        ...

    async def infer(self, model: str, version: str, request: InferRequest) -> InferResponse:
        """Answer one request; cancelling the task cancels it. Version "" is the newest that is ready."""
        ...

    def stream(
        self, model: str, version: str, requests: AsyncIterator[InferRequest]
    ) -> AsyncGenerator[InferResponse, None]:
        """Answer a stream by a stream; closing it cancels the model's work."""
        ...

    def live(self) -> bool:
        """Whether the server runs."""
        ...

    def ready(self) -> bool:
        """Whether all that is wanted can answer."""
        ...

    def model_ready(self, model: str, version: str) -> bool:
        """Whether a model can answer; ModelNotFoundError for one that is not known."""
        ...

    def metadata(self, model: str, version: str) -> ModelMetadata:
        """What a model says of itself."""
        ...

    def versions(self, model: str) -> tuple[str, ...]:
        """All versions of a model."""
        ...

    def index(self, *, ready: bool = False) -> tuple[ModelIndexEntry, ...]:
        """All models, or only those that are ready."""
        ...

    async def load(self, model: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Load, or load again; returns when the model is ready."""
        ...

    async def unload(self, model: str) -> None:
        """Unload; returns when it is done."""
        ...

    def statistics(self, model: str = "", version: str = "") -> tuple[ModelStatistics, ...]:
        """How models fare; "" is all of them."""
        ...


class Call(Protocol):
    """One call, as its carrier knows it."""

    def metadata(self, key: str) -> str | None:
        """The first value of a lower-case key; None where there is none."""
        ...

    def remaining_s(self) -> float | None:
        """Seconds until the caller stops waiting; None when it waits for ever."""
        ...


Unary = Callable[[Call, bytes], Awaitable[bytes]]
Stream = Callable[[Call, AsyncIterator[bytes]], AsyncGenerator[bytes, None]]


@dataclass(frozen=True, slots=True)
class Method:
    """What answers a path: exactly one of `unary` and `stream`. Both take and give the bytes of messages.

    Whoever iterates a stream closes it. What is raised becomes a status through `grpc_errors`.
    """

    unary: Unary | None = None
    stream: Stream | None = None
