import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.storage.draft import read_kept
from headrace.storage.local import LocalStore
from headrace.storage.memory import MemoryStore
from headrace.storage.publisher import Publisher
from headrace.transforms import spool as module
from headrace.transforms.spool import Spool

OUT = "memory://out/"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(module, "HELD_BYTES_MAX", 10)


@pytest.fixture(params=["disk", "memory"])
def place(request, tmp_path):
    return (LocalStore(), f"{tmp_path}/") if request.param == "disk" else (MemoryStore(), OUT)


def names(store, base):
    return [i.uri.removeprefix(base) for i in store.list(base)]


@pytest.mark.parametrize("writes", [[], [b""], [b"abc"], [b"a" * 10], [b"a" * 11], [b"abc"] * 20])
def test_what_was_written_is_published(place, writes):
    store, base = place
    spool, publisher = Spool(store, base + "draft"), Publisher(store, base, drafts=base + "_drafts/")
    for data in writes:
        spool.write(data)
    assert spool.nbytes == len(b"".join(writes))
    assert spool.publish(base + "k", publisher) is None
    publisher.settle()
    publisher.close()
    spool.close()
    assert store.get(base + "k") == b"".join(writes)
    assert names(store, base) == ["k"]


def test_few_bytes_are_held_and_many_are_not(place):
    store, base = place
    spool = Spool(store, base + "draft")
    spool.write(b"a" * 10)
    assert names(store, base) == []
    spool.write(b"b")
    if isinstance(store, LocalStore):
        assert store.get(base + "draft") == b"a" * 10 + b"b"
    assert spool.nbytes == 11
    spool.close()


def test_what_is_kept_goes_on_in_another_process(place):
    store, base = place
    spool = Spool(store, base + "draft")
    assert spool.keep() is None
    spool.write(b"abc")
    kept = spool.keep()
    spool.write(b"lost")
    spool.close()
    other, publisher = (
        Spool(store, base + "other", kept=kept),
        Publisher(store, base, drafts=base + "_drafts/"),
    )
    assert other.nbytes == 3
    other.write(b"def")
    again = other.keep()
    other.write(b"g")
    assert other.publish(base + "k", publisher) is not None
    assert store.get(base + "k") == b"abcdefg"
    for one, data in ((kept, b"abc"), (again, b"abcdef")):
        assert b"".join(read_kept(store, one)) == data
    publisher.close()


@settings(deadline=None, max_examples=40)
@given(st.lists(st.one_of(st.none(), st.binary(max_size=15)), max_size=12))
def test_however_it_is_written_and_kept(steps):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "HELD_BYTES_MAX", 10)
        patch.setattr("headrace.storage.draft.SEGMENT_BYTES", 12)
        store = MemoryStore()
        spool, written = Spool(store, OUT + "0"), b""
        for number, step in enumerate(steps, 1):
            if step is None:
                kept = spool.keep()
                spool.write(b"lost")
                spool.close()
                spool = Spool(store, f"{OUT}{number}", kept=kept)
            else:
                spool.write(step)
                written += step
            assert spool.nbytes == len(written)
        publisher = Publisher(store, OUT, drafts=OUT + "_drafts/")
        spool.publish(OUT + "k", publisher)
        publisher.settle()
        publisher.close()
        spool.close()
        assert store.get(OUT + "k") == written
