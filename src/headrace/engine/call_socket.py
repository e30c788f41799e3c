"""Calls between an instance and its process: one message there, one back, each a JSON object and perhaps a file.

What is large never travels here; see `engine.shared_arrays`.
"""

import array
import os
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import orjson

_LENGTH: Final = struct.Struct("<I")
_PIECE_BYTES: Final = 16 * 1024
_FD_BYTES: Final = socket.CMSG_SPACE(4)


def pack(message: Mapping[str, Any]) -> bytes:
    """A message as it is sent. TypeError for what is no plain value, and for text that is no UTF-8."""
    text = orjson.dumps(message, option=orjson.OPT_SERIALIZE_NUMPY)
    return _LENGTH.pack(len(text)) + text


class CallSocket:
    """One end of a socket pair. EOFError when the other end is gone, TimeoutError when it takes too long."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def limit(self, timeout_s: float | None) -> None:
        """How long `send` and `receive` may last from now on."""
        self._socket.settimeout(timeout_s)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message. Raises what `pack` does, too."""
        self.send_packed(pack(message))

    def send_packed(self, data: bytes, fd: int | None = None) -> None:
        """Send what `pack` made, and a file, which is closed here."""
        try:
            sent = self._socket.send(data) if fd is None else socket.send_fds(self._socket, [data], [fd])
            if sent < len(data):
                self._socket.sendall(memoryview(data)[sent:])
        except TimeoutError:
            raise
        except OSError as error:
            raise EOFError(str(error)) from error
        finally:
            if fd is not None:
                os.close(fd)

    def receive(self) -> tuple[dict[str, Any], int | None]:
        """The next message, and the file that came with it, which is the caller's to close."""
        data, fd = self._some()
        try:
            while len(data) < _LENGTH.size:
                data += self._some()[0]
            end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
            while len(data) < end:
                data += self._some()[0]
        except BaseException:
            if fd is not None:
                os.close(fd)
            raise
        return orjson.loads(memoryview(data)[_LENGTH.size :]), fd

    def _some(self) -> tuple[bytes, int | None]:
        try:
            data, ancillary, _, _ = self._socket.recvmsg(_PIECE_BYTES, _FD_BYTES, socket.MSG_CMSG_CLOEXEC)
        except TimeoutError:
            raise
        except OSError as error:
            raise EOFError(str(error)) from error
        if not data:
            raise EOFError("the other end has gone")
        fd = array.array("i", ancillary[0][2])[0] if ancillary else None
        return data, fd

    def shut(self) -> None:
        """End what waits here, from any thread: it raises EOFError."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()
