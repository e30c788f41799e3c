"""The part writer and its uploading thread."""

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.multipart import QUEUED_PARTS_MAX, PartWriter


class _RecordingServer:
    def __init__(self) -> None:
        self.whole: list[bytes] = []
        self.parts: list[bytes] = []
        self.aborted = False

    def put(self, data: bytes) -> None:
        self.whole.append(data)

    def upload(self, parts: Iterator[bytes]) -> None:
        try:
            self.parts.extend(parts)
        except Exception:
            self.aborted = True
            raise


@given(st.lists(st.binary(max_size=25), max_size=20), st.integers(1, 10))
def test_parts_hold_all_bytes_in_order(pieces, part_bytes):
    server = _RecordingServer()
    with PartWriter("u", part_bytes, server.put, server.upload) as writer:
        for piece in pieces:
            writer.write(piece)
    data = b"".join(pieces)
    if len(data) <= part_bytes:
        assert (server.whole, server.parts) == ([data], [])
    else:
        assert server.whole == []
        assert b"".join(server.parts) == data
        assert {len(p) for p in server.parts[:-1]} == {part_bytes}
        assert 0 < len(server.parts[-1]) <= part_bytes


@pytest.mark.parametrize("size", [3, 30])
def test_abort_aborts_the_upload_and_publishes_nothing(size):
    server = _RecordingServer()
    writer = PartWriter("u", 10, server.put, server.upload)
    writer.write(bytes(size))
    writer.abort()
    writer.close()
    assert server.whole == []
    assert server.aborted == (size > 10)
    with pytest.raises(ValueError, match="closed"):
        writer.write(b"")


def test_failed_upload_raises_in_write_without_blocking():
    def refuse(parts: Iterator[bytes]) -> None:
        next(parts)
        raise PermissionError("no")

    writer = PartWriter("u", 10, lambda _: None, refuse)

    def write_much():
        for _ in range(100):
            writer.write(bytes(10))
        writer.close()

    with pytest.raises(PermissionError):
        write_much()
    writer.abort()
    writer.close()


def test_failure_of_the_last_part_raises_in_close():
    def refuse_late(parts: Iterator[bytes]) -> None:
        list(parts)
        raise PermissionError("no")

    writer = PartWriter("u", 10, lambda _: None, refuse_late)
    writer.write(bytes(11))
    with pytest.raises(PermissionError):
        writer.close()


def test_slow_upload_blocks_the_writer(monkeypatch):
    released, taken, blocked = threading.Event(), [], threading.Event()

    def slow(parts: Iterator[bytes]) -> None:
        for part in parts:
            taken.append(part)
            released.wait(10)

    writer = PartWriter("u", 1, lambda _: None, slow)
    ahead = []

    def write_all():
        for number in range(20):
            writer.write(b"x")
            ahead.append(number - len(taken))
        writer.close()

    thread = threading.Thread(target=write_all)
    condition = writer._parts._changed
    wait_for = condition.wait_for

    def watched_wait_for(predicate):
        if threading.current_thread() is thread and not predicate():
            blocked.set()
        return wait_for(predicate)

    monkeypatch.setattr(condition, "wait_for", watched_wait_for)
    thread.start()
    assert blocked.wait(10)
    assert len(ahead) < 20
    released.set()
    thread.join(10)
    assert len(taken) == 20
    # One part is in the buffer, some are queued, and the uploader is taking one.
    assert max(ahead) <= QUEUED_PARTS_MAX + 2
