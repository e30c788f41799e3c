import threading

import pytest

from headrace.core.errors import StorageError, UnavailableError
from headrace.storage import draft as publisher_module
from headrace.storage.draft import DraftPublisher
from headrace.storage.local import LocalStore
from headrace.storage.resolve import MemoryStore
from headrace.testing import FlakyStore

OUT = "memory://out/"


class HeldStore(MemoryStore):
    """A memory store whose puts wait for `released`. `peak` is the most puts that ran at once."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()
        self.entered = threading.Semaphore(0)
        self.running = self.peak = 0
        self.count = threading.Lock()

    def put(self, uri: str, data: bytes) -> None:
        with self.count:
            self.running += 1
            self.peak = max(self.peak, self.running)
        self.entered.release()
        assert self.released.wait(10)
        super().put(uri, data)
        with self.count:
            self.running -= 1


@pytest.fixture(params=["disk", "memory"])
def store_and_base(request, tmp_path):
    return (LocalStore(), f"{tmp_path}/out/") if request.param == "disk" else (MemoryStore(), OUT)


def test_all_objects_exist_after_flush(store_and_base):
    store, base = store_and_base
    publisher = DraftPublisher(store, base, drafts=base + "_drafts/")
    for number in range(200):
        publisher.put(f"{base}{number % 7}/{number}", b"%d" % number)
    publisher.flush()
    assert {int(store.get(i.uri)) for i in store.list(base)} == set(range(200))
    publisher.put(base + "0/0", b"again")
    publisher.flush()
    publisher.flush()
    assert store.get(base + "0/0") == b"again"
    publisher.close()
    publisher.close()


def test_flush_without_objects_touches_nothing(tmp_path):
    publisher = DraftPublisher(LocalStore(), f"{tmp_path}/not/there/", drafts=f"{tmp_path}/_drafts/")
    publisher.flush()
    publisher.close()


def test_remote_puts_run_concurrently_within_the_limit(monkeypatch):
    monkeypatch.setattr(publisher_module, "PENDING_MAX", 5)
    store = HeldStore()
    publisher = DraftPublisher(store, OUT, drafts=OUT + "_drafts/")
    for number in range(5):
        publisher.put(f"{OUT}{number}", b"x")
    for _ in range(5):
        assert store.entered.acquire(timeout=10)
    blocked = threading.Thread(target=publisher.put, args=(OUT + "6", b"x"))
    blocked.start()
    assert store.peak == 5
    assert blocked.is_alive()
    store.released.set()
    blocked.join(10)
    publisher.flush()
    assert len(list(store.list(OUT))) == 6
    publisher.close()


def test_pending_bytes_are_bounded(monkeypatch):
    monkeypatch.setattr(publisher_module, "PENDING_BYTES_MAX", 10)
    store = HeldStore()
    publisher = DraftPublisher(store, OUT, drafts=OUT + "_drafts/")
    publisher.put(OUT + "0", b"x" * 10)
    blocked = threading.Thread(target=publisher.put, args=(OUT + "1", b"x"))
    blocked.start()
    assert store.entered.acquire(timeout=10)
    assert not store.entered.acquire(blocking=False)
    store.released.set()
    blocked.join(10)
    publisher.flush()
    publisher.close()
    assert store.peak == 1


def test_failed_put_raises_in_flush():
    publisher = DraftPublisher(FlakyStore(MemoryStore(), fail_every=3), OUT, drafts=OUT + "_drafts/")
    for number in range(4):
        publisher.put(f"{OUT}{number}", b"x")
    with pytest.raises(UnavailableError):
        publisher.flush()
    publisher.close()


def test_disk_error_raises_in_put(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    publisher = DraftPublisher(LocalStore(), f"{tmp_path}/", drafts=f"{tmp_path}/_drafts/")
    with pytest.raises(StorageError):
        publisher.put(f"{tmp_path}/file/below", b"x")
    publisher.close()
