"""Messages of calls: whole, with their files, and an end that is told."""

import os
import socket
import threading

import pytest

from headrace.engine.call_socket import CallSocket, pack


@pytest.fixture
def ends():
    """Two ends that talk to each other."""
    made = [CallSocket(end) for end in socket.socketpair()]
    yield made
    for end in made:
        end.close()


def test_a_message_arrives_with_its_file(ends):
    """Which the sender has closed, and the receiver's children do not get."""
    here, there = ends
    fd = os.memfd_create("x")
    os.write(fd, b"abc")
    here.send_packed(pack({"a": [1, None]}), fd)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)
    message, found = there.receive()
    assert message == {"a": [1, None]}
    assert not os.get_inheritable(found)
    assert os.pread(found, 3, 0) == b"abc"
    os.close(found)


@pytest.mark.parametrize("value", [object(), b"x", {1: 2}, 1 << 64, "\ud800"])
def test_what_is_no_plain_value_is_known_before_anything_is_sent(value):
    with pytest.raises(TypeError):
        pack({"a": value})


@pytest.mark.parametrize("size", [0, 16 * 1024 - 6, 16 * 1024, 3_000_000])
def test_messages_of_any_size_arrive_whole(ends, size):
    here, there = ends
    sending = threading.Thread(target=here.send, args=({"a": "x" * size},))
    sending.start()
    message, fd = there.receive()
    sending.join()
    assert (len(message["a"]), fd) == (size, None)


def test_the_other_ends_end_is_told(ends):
    """Before a message, and amid one."""
    here, there = ends
    here._socket.send(b"\xff\x00\x00\x00half")
    here.close()
    with pytest.raises(EOFError):
        there.receive()
    with pytest.raises(EOFError):
        there.send({"a": "x" * 1_000_000})


def test_whoever_waits_can_be_woken(ends):
    here, _ = ends
    threading.Timer(0.0, here.shut).start()
    with pytest.raises(EOFError):
        here.receive()


def test_a_limit_is_kept(ends):
    here, _ = ends
    here.limit(0.01)
    with pytest.raises(TimeoutError):
        here.receive()
