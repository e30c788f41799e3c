import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.runs import output as module
from headrace.runs.output import SpooledOutput
from headrace.storage.draft import DraftPublisher, read_range
from headrace.storage.local import LocalStore
from headrace.storage.resolve import MemoryStore

OUT = "memory://out/"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(module, "BUFFER_BYTES_MAX", 10)


@pytest.fixture(params=["disk", "memory"])
def place(request, tmp_path):
    return (LocalStore(), f"{tmp_path}/") if request.param == "disk" else (MemoryStore(), OUT)


def names(store, base):
    return [i.uri.removeprefix(base) for i in store.list(base)]


@for_each("writes", [[], [b""], [b"abc"], [b"a" * 10], [b"a" * 11], [b"abc"] * 20])
def test_written_bytes_are_published(place, writes):
    store, base = place
    spooled, publisher = (
        SpooledOutput(store, base + "draft"),
        DraftPublisher(store, base, drafts=base + "_drafts/"),
    )
    for data in writes:
        spooled.write(data)
    assert spooled.nbytes == len(b"".join(writes))
    assert spooled.publish(base + "k", publisher) is None
    publisher.flush()
    publisher.close()
    spooled.close()
    assert store.get(base + "k") == b"".join(writes)
    assert names(store, base) == ["k"]


def test_small_output_stays_in_memory(place):
    store, base = place
    spooled = SpooledOutput(store, base + "draft")
    spooled.write(b"a" * 10)
    assert names(store, base) == []
    spooled.write(b"b")
    if isinstance(store, LocalStore):
        assert store.get(base + "draft") == b"a" * 10 + b"b"
    assert spooled.nbytes == 11
    spooled.close()


def test_persisted_output_continues_in_another_process(place):
    store, base = place
    spooled = SpooledOutput(store, base + "draft")
    assert spooled.persist() is None
    spooled.write(b"abc")
    persisted = spooled.persist()
    spooled.write(b"lost")
    spooled.close()
    other, publisher = (
        SpooledOutput(store, base + "other", persisted=persisted),
        DraftPublisher(store, base, drafts=base + "_drafts/"),
    )
    assert other.nbytes == 3
    other.write(b"def")
    again = other.persist()
    other.write(b"g")
    assert other.publish(base + "k", publisher) is not None
    assert store.get(base + "k") == b"abcdefg"
    for one, data in ((persisted, b"abc"), (again, b"abcdef")):
        assert b"".join(read_range(store, one)) == data
    publisher.close()


@given(st.lists(st.one_of(st.none(), st.binary(max_size=15)), max_size=12))
def test_any_sequence_of_writes_and_persists(steps):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BUFFER_BYTES_MAX", 10)
        patch.setattr("headrace.storage.draft.SEGMENT_BYTES", 12)
        store = MemoryStore()
        spooled, written = SpooledOutput(store, OUT + "0"), b""
        for number, step in enumerate(steps, 1):
            if step is None:
                persisted = spooled.persist()
                spooled.write(b"lost")
                spooled.close()
                spooled = SpooledOutput(store, f"{OUT}{number}", persisted=persisted)
            else:
                spooled.write(step)
                written += step
            assert spooled.nbytes == len(written)
        publisher = DraftPublisher(store, OUT, drafts=OUT + "_drafts/")
        spooled.publish(OUT + "k", publisher)
        publisher.flush()
        publisher.close()
        spooled.close()
        assert store.get(OUT + "k") == written
