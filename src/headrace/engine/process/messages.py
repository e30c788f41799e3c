"""Messages between an instance and its process, through a call socket: dataclasses as JSON, tagged by type.

Arrays, and the bytes of checkpoints, requests and responses, travel in shared memory
(`headrace.engine.process.shared_arrays`); messages say where they lie. A message may bring a file.
"""

import array
import mmap
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final, NamedTuple, get_args

import numpy as np
import orjson

from headrace.core.model import ModelRecipe
from headrace.core.sequence import SequenceEnd, SequenceLimits
from headrace.core.tensor import Array, ModelMetadata, TensorSpec
from headrace.engine.inputs import ModelInputs, exact_inputs
from headrace.engine.process.shared_arrays import ArrayHeader
from headrace.engine.settings import ServeSettings
from headrace.engine.stepper import SequenceEnding, StepFlags, StepOrder

CONTROL_BYTES: Final = mmap.PAGESIZE
"""Size of the page that both processes map. It begins with the number of the last cancelled call,
as CALL_NUMBER.
"""
CALL_NUMBER: Final = struct.Struct("<Q")
_BLOBS: Final = "blobs"
_LENGTH: Final = struct.Struct("<I")
_PIECE_BYTES: Final = 16 * 1024
_FD_BYTES: Final = socket.CMSG_SPACE(4)
_CLOEXEC: Final[int] = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
"""On systems without the flag, a received file is made uninheritable afterwards."""

Lengths = Sequence[int | None]
"""Bytes of each blob; None for none."""


class OpaqueHeader(NamedTuple):
    """A request of `handle`, without the bytes of its parts."""

    names: Sequence[str]
    headers: Mapping[str, str]
    id: str
    priority: int
    left_s: float | None
    """Seconds until its deadline."""


class ResponseHeader(NamedTuple):
    """A response of `handle`, without its body."""

    status: int
    content_type: str
    headers: Mapping[str, str]
    chunked: int | None
    """Number of its body in the process, if that is read chunk by chunk; else None."""


# To the process


@dataclass(frozen=True, slots=True)
class StartMessage:
    """The settings that a process needs to make and load a model."""

    recipe: ModelRecipe
    name: str
    version: str | None
    fingerprint: str
    settings: ServeSettings
    log_level: int
    parent_pid: int

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> "StartMessage":
        """Return the message of decoded values."""
        settings = values["settings"]
        names = settings["environ_pass"]
        settings["environ_pass"] = None if names is None else tuple(names)
        settings["sequences"] = _limits(settings["sequences"])
        values["settings"] = ServeSettings(**settings)
        values["recipe"] = ModelRecipe(**values["recipe"])
        return cls(**values)


@dataclass(frozen=True, slots=True)
class CallMessage:
    """One call of the model."""

    number: int
    arena_bytes: int
    """Size of the arena with the arrays; its file comes with the first message."""
    deadline_s: float | None
    """Seconds until the last deadline of the requests."""
    rows: int
    request_id: str
    arrays: Sequence[ArrayHeader]
    orders: Sequence[StepOrder] = ()
    """With a `step`: the orders, without their checkpoints."""
    blobs: Sequence[ArrayHeader] = ()
    """The checkpoints to restore, joined."""
    lengths: Lengths | None = None
    requests: Sequence[OpaqueHeader] = ()
    """For `handle`: the requests, whose parts are the arrays, in order."""

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> "CallMessage":
        """Return the message of decoded values."""
        values["orders"] = [StepOrder(*order) for order in values["orders"]]
        values["requests"] = [OpaqueHeader(*request) for request in values["requests"]]
        return cls(**values)


@dataclass(frozen=True, slots=True)
class EndSequencesMessage:
    """Sequences that have ended."""

    number: int
    endings: Sequence[SequenceEnding]

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> "EndSequencesMessage":
        """Return the message of decoded values."""
        endings = [
            SequenceEnding(number, id, steps, SequenceEnd(why))
            for number, id, steps, why in values["endings"]
        ]
        return cls(values["number"], endings)


@dataclass(frozen=True, slots=True)
class CloseMessage:
    """The end: the model is closed, then the process exits."""

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> "CloseMessage":
        """Return the message of decoded values."""
        return cls(**values)


# From the process


@dataclass(frozen=True, slots=True)
class LoadedMessage:
    """The properties of a loaded model."""

    metadata: ModelMetadata
    inputs: ModelInputs
    sequences: SequenceLimits

    @classmethod
    def from_model(
        cls, metadata: ModelMetadata, inputs: ModelInputs, sequences: SequenceLimits
    ) -> "LoadedMessage":
        """Return the message about a model. Numpy's types do not travel."""
        return cls(metadata, replace(inputs, exact=None), sequences)

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> "LoadedMessage":
        """Return the message of decoded values."""
        metadata, inputs = values["metadata"], values["inputs"]
        for each, names in ((metadata, ("inputs", "outputs")), (inputs, ("specs",))):
            each |= {name: _specs(each[name]) for name in names}
        inputs |= {name: tuple(inputs[name]) for name in ("optional", "reserved")}
        inputs["exact"] = exact_inputs(inputs["specs"]) if inputs["declared"] else None
        return cls(
            ModelMetadata(**metadata), ModelInputs(**inputs), SequenceLimits(**_limits(values["sequences"]))
        )


@dataclass(frozen=True, slots=True)
class ResultMessage:
    """The result of a call, or of the ends of sequences."""

    arena_bytes: int = 0
    """Size of the arena with the arrays; its file comes with the first message."""
    keeps_inputs: bool = False
    """True if the model keeps an input array: the next call needs other memory."""
    arrays: Sequence[ArrayHeader] = ()
    flags: Sequence[StepFlags] = ()
    """With a `step`: the model's decisions for each row."""
    blobs: Sequence[ArrayHeader] = ()
    """The requested checkpoints, joined."""
    lengths: Lengths | None = None
    input_s: float = 0.0
    infer_s: float = 0.0
    output_s: float = 0.0
    responses: Sequence[ResponseHeader] = ()
    """For `handle`: the responses, whose bodies are the arrays, in order."""
    took_s: float = 0.0
    """Seconds from the message's arrival until the result was ready."""

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> "ResultMessage":
        """Return the message of decoded values."""
        values["flags"] = [(again, silent, ends) for again, silent, ends in values["flags"]]
        values["responses"] = [ResponseHeader(*response) for response in values["responses"]]
        return cls(**values)


@dataclass(frozen=True, slots=True)
class ErrorMessage:
    """The error of loading, of a call, or of the ends of sequences."""

    error: Mapping[str, Any]
    """The error, by `headrace.engine.model_methods`."""
    arena_bytes: int = 0
    keeps_inputs: bool = False

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> "ErrorMessage":
        """Return the message of decoded values."""
        return cls(**values)


Message = (
    StartMessage
    | CallMessage
    | EndSequencesMessage
    | CloseMessage
    | LoadedMessage
    | ResultMessage
    | ErrorMessage
)
_KINDS: Final[Mapping[str, type[Message]]] = {kind.__name__: kind for kind in get_args(Message)}


def encode_message(message: Message) -> bytes:
    """Return a message as JSON. Raises TypeError for values that are not plain, and invalid text."""
    return orjson.dumps(
        (type(message).__name__, message), default=_as_plain, option=orjson.OPT_SERIALIZE_NUMPY
    )


def _as_plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    raise TypeError(f"a {type(value).__name__} cannot be sent to another process")


def decode_message(text: bytes | memoryview) -> Message:
    """Return the message of `encode_message`."""
    kind, values = orjson.loads(text)
    return _KINDS[kind].from_values(values)


def _limits(values: Mapping[str, Any]) -> dict[str, Any]:
    # JSON has no infinity: it arrives as None, which means no limit except for `idle_ms`.
    return {name: inf if value is None and name == "idle_ms" else value for name, value in values.items()}


def _specs(values: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(v["name"], v["datatype"], None if v["shape"] is None else tuple(v["shape"]))
        for v in values
    )


def join_blobs(blobs: Sequence[bytes | None]) -> tuple[Lengths | None, Mapping[str, Array]]:
    """Return the lengths of the blobs and all of them as one array.

    Return None and no array without a blob.
    """
    present = [data for data in blobs if data is not None]
    if not present:
        return None, {}
    lengths = [None if data is None else len(data) for data in blobs]
    return lengths, {_BLOBS: np.frombuffer(b"".join(present), np.uint8)}


def split_blobs(lengths: Lengths | None, arrays: Mapping[str, Array], count: int) -> list[bytes | None]:
    """Return the `count` blobs that `join_blobs` joined."""
    if lengths is None:
        return [None] * count
    data, at = arrays[_BLOBS].data, 0
    blobs: list[bytes | None] = []
    for length in lengths:
        blobs.append(None if length is None else bytes(data[at : at + length]))
        at += length or 0
    return blobs


def pack_message(message: Message) -> bytes:
    """Return a message as bytes. Raises TypeError for values that are not plain, and invalid text."""
    text = encode_message(message)
    return _LENGTH.pack(len(text)) + text


class CallSocket:
    """One end of a socket pair.

    Raises EOFError when the other end is closed, and TimeoutError when the other end takes too
    long.
    """

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        """The socket, whose timeout is that of `send` and `receive`. Close it."""

    def send(self, message: Message) -> None:
        """Send one message. Raises as `pack_message` does."""
        self.send_packed(pack_message(message))

    def send_packed(self, data: bytes, fd: int | None = None) -> None:
        """Send a packed message and a file. The file is closed here."""
        try:
            sent = self.end.send(data) if fd is None else socket.send_fds(self.end, [data], [fd])
            if sent < len(data):
                self.end.sendall(memoryview(data)[sent:])
        except TimeoutError:
            raise
        except OSError as error:
            raise EOFError(str(error)) from error
        finally:
            if fd is not None:
                os.close(fd)

    def receive(self) -> tuple[Message, int | None]:
        """Return the next message and its file. The caller closes the file."""
        data, fd = self._receive_chunk()
        try:
            while len(data) < _LENGTH.size:
                data += self._receive_chunk()[0]
            end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
            while len(data) < end:
                data += self._receive_chunk()[0]
        except BaseException:
            if fd is not None:
                os.close(fd)
            raise
        return decode_message(memoryview(data)[_LENGTH.size :]), fd

    def _receive_chunk(self) -> tuple[bytes, int | None]:
        try:
            data, ancillary, _, _ = self.end.recvmsg(_PIECE_BYTES, _FD_BYTES, _CLOEXEC)
        except TimeoutError:
            raise
        except OSError as error:
            raise EOFError(str(error)) from error
        if not data:
            raise EOFError("the other end of the socket is closed")
        fd = array.array("i", ancillary[0][2])[0] if ancillary else None
        if fd is not None and not _CLOEXEC:
            os.set_inheritable(fd, False)
        return data, fd

    def shutdown(self) -> None:
        """Make waiting calls raise EOFError. Any thread."""
        with suppress(OSError):
            self.end.shutdown(socket.SHUT_RDWR)
