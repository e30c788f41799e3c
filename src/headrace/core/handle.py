"""Opaque requests and responses, for `Model.handle`: bytes and headers, which headrace passes on."""

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.core.tensor import DEFAULT_PRIORITY

BODY: Final = "body"
"""The name of a request's bytes, unless it is a multipart form, which names its parts."""


@dataclass(frozen=True, slots=True)
class HandleRequest:
    """A request that the model reads itself."""

    parts: Mapping[str, bytes]
    """Bytes by name: the fields and files of a multipart form. Any other body is named ``body``."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Headers by lower-case name, without ``authorization``."""
    id: str = ""
    deadline: float | None = None
    """Time of the clock at which the request expires, or None."""
    priority: int = DEFAULT_PRIORITY
    """Lower values are called first."""

    @property
    def body(self) -> bytes:
        """The bytes of a request that is no form; empty if it has none."""
        return self.parts.get(BODY, b"")


@dataclass(frozen=True, slots=True)
class HandleResponse:
    """A response that the model writes itself."""

    body: bytes | Iterator[bytes] | AsyncIterator[bytes] = b""
    """The whole body, or an iterator of its chunks, each of which is sent at once.

    A generator is closed when the client disconnects. Chunks of an async iterator need an
    ``async def handle``.
    """
    status: int = 200
    """The HTTP status, 200 to 599."""
    content_type: str = "application/octet-stream"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further headers, without those of the connection."""
