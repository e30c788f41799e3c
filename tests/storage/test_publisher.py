import threading

import pytest

from headrace.core.errors import StorageError, UnavailableError
from headrace.storage import publisher as module
from headrace.storage.local import LocalStore
from headrace.storage.memory import MemoryStore
from headrace.storage.publisher import Publisher
from headrace.testing import FlakyStore

OUT = "memory://out/"


class HeldStore(MemoryStore):
    """Puts wait until they are let go; `waiting` is the most that ran at once."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.entered = threading.Semaphore(0)
        self.running = self.most = 0
        self.count = threading.Lock()

    def put(self, uri: str, data: bytes) -> None:
        with self.count:
            self.running += 1
            self.most = max(self.most, self.running)
        self.entered.release()
        assert self.go.wait(10)
        super().put(uri, data)
        with self.count:
            self.running -= 1


@pytest.fixture(params=["disk", "memory"])
def place(request, tmp_path):
    return (LocalStore(), f"{tmp_path}/out/") if request.param == "disk" else (MemoryStore(), OUT)


def test_all_is_there_once_it_is_settled(place):
    store, base = place
    publisher = Publisher(store, base, drafts=base + "_drafts/")
    for number in range(200):
        publisher.put(f"{base}{number % 7}/{number}", b"%d" % number)
    publisher.settle()
    assert {int(store.get(i.uri)) for i in store.list(base)} == set(range(200))
    publisher.put(base + "0/0", b"again")
    publisher.settle()
    publisher.settle()
    assert store.get(base + "0/0") == b"again"
    publisher.close()
    publisher.close()


def test_nothing_to_do_needs_nothing(tmp_path):
    publisher = Publisher(LocalStore(), f"{tmp_path}/not/there/", drafts=f"{tmp_path}/_drafts/")
    publisher.settle()
    publisher.close()


def test_puts_to_a_far_store_run_at_once_and_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "WAITING_MAX", 5)
    store = HeldStore()
    publisher = Publisher(store, OUT, drafts=OUT + "_drafts/")
    for number in range(5):
        publisher.put(f"{OUT}{number}", b"x")
    for _ in range(5):
        assert store.entered.acquire(timeout=10)
    blocked = threading.Thread(target=publisher.put, args=(OUT + "6", b"x"))
    blocked.start()
    assert store.most == 5
    assert blocked.is_alive()
    store.go.set()
    blocked.join(10)
    publisher.settle()
    assert len(list(store.list(OUT))) == 6
    publisher.close()


def test_waiting_bytes_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "WAITING_BYTES_MAX", 10)
    store = HeldStore()
    publisher = Publisher(store, OUT, drafts=OUT + "_drafts/")
    publisher.put(OUT + "0", b"x" * 10)
    blocked = threading.Thread(target=publisher.put, args=(OUT + "1", b"x"))
    blocked.start()
    assert store.entered.acquire(timeout=10)
    assert not store.entered.acquire(blocking=False)
    store.go.set()
    blocked.join(10)
    publisher.settle()
    publisher.close()
    assert store.most == 1


def test_what_went_wrong_is_raised_when_it_is_settled():
    publisher = Publisher(FlakyStore(MemoryStore(), fail_every=3), OUT, drafts=OUT + "_drafts/")
    for number in range(4):
        publisher.put(f"{OUT}{number}", b"x")
    with pytest.raises(UnavailableError):
        publisher.settle()
    publisher.close()


def test_a_disks_error_is_raised_at_once(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    publisher = Publisher(LocalStore(), f"{tmp_path}/", drafts=f"{tmp_path}/_drafts/")
    with pytest.raises(StorageError):
        publisher.put(f"{tmp_path}/file/below", b"x")
    publisher.close()
