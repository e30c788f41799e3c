"""Messages of the call socket: complete, with their files, and a reported end."""

import os
import socket
import threading

import pytest

from cases import for_each
from headrace.engine.process.messages import CallSocket, ErrorMessage, pack_message


def _message(value):
    return ErrorMessage({"why": value})


_OTHERS = len(pack_message(_message("")))
"""Bytes of a packed message with an empty value."""


@pytest.fixture
def ends():
    """Yield two connected ends."""
    made = [CallSocket(end) for end in socket.socketpair()]
    yield made
    for end in made:
        end.end.close()


def test_message_arrives_with_its_file(ends):
    """The sender has closed the file, and children of the receiver do not inherit it."""
    here, there = ends
    fd = os.memfd_create("x")
    os.write(fd, b"abc")
    here.send_packed(pack_message(_message([1, None])), fd)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)
    message, found = there.receive()
    assert message == _message([1, None])
    assert not os.get_inheritable(found)
    assert os.pread(found, 3, 0) == b"abc"
    os.close(found)


@for_each("value", [object(), b"x", {1: 2}, 1 << 64, "\ud800"])
def test_unsendable_message_sends_nothing(value):
    with pytest.raises(TypeError):
        pack_message(_message(value))


@for_each("size", [0, 16 * 1024 - _OTHERS, 16 * 1024, 3_000_000])
def test_messages_of_any_size_arrive_whole(ends, size):
    here, there = ends
    sending = threading.Thread(target=here.send, args=(_message("x" * size),))
    sending.start()
    message, fd = there.receive()
    sending.join()
    assert (len(message.error["why"]), fd) == (size, None)


def test_closed_other_end_raises_eof(ends):
    """Before a message, and in the middle of one."""
    here, there = ends
    here.end.send(b"\xff\x00\x00\x00half")
    here.end.close()
    with pytest.raises(EOFError):
        there.receive()
    with pytest.raises(EOFError):
        there.send(_message("x" * 1_000_000))


def test_shutdown_wakes_waiting_receive(ends):
    here, _ = ends
    threading.Timer(0.0, here.shutdown).start()
    with pytest.raises(EOFError):
        here.receive()


def test_timeout_is_enforced(ends):
    here, _ = ends
    here.end.settimeout(0.01)
    with pytest.raises(TimeoutError):
        here.receive()
