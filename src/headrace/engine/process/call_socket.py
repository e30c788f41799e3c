"""The call socket between an instance and its process: JSON messages, each with an optional file.

Arrays do not travel here; see `headrace.engine.process.shared_arrays`.
"""

import array
import os
import socket
import struct
from contextlib import suppress
from typing import Final

from headrace.engine.process.messages import Message, decode_message, encode_message

_LENGTH: Final = struct.Struct("<I")
_PIECE_BYTES: Final = 16 * 1024
_FD_BYTES: Final = socket.CMSG_SPACE(4)
_CLOEXEC: Final[int] = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
"""On systems without the flag, a received file is made uninheritable afterwards."""


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
        self._socket = end

    def set_timeout(self, timeout_s: float | None) -> None:
        """Set the timeout of `send` and `receive`; None for no limit."""
        self._socket.settimeout(timeout_s)

    def send(self, message: Message) -> None:
        """Send one message. Raises as `pack_message` does."""
        self.send_packed(pack_message(message))

    def send_packed(self, data: bytes, fd: int | None = None) -> None:
        """Send a packed message and a file. The file is closed here."""
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
            data, ancillary, _, _ = self._socket.recvmsg(_PIECE_BYTES, _FD_BYTES, _CLOEXEC)
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
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()
