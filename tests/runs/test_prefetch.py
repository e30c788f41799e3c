import threading

import pytest

from headrace.core.errors import ChangedError, NotFoundError
from headrace.runs.prefetch import LOCAL_RANGE_BYTES, Extent, Prefetch
from headrace.runs.settings import FlowSettings
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import MemoryStore, Stores

KIB = 1024


class WatchedStore(MemoryStore):
    """A store that records the requested ranges, and holds reads back until the test opens the
    gate.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, int, int]] = []
        self.changed = threading.Condition()
        self.open = True

    def get_range(self, uri, start, length, *, etag=""):
        with self.changed:
            self.asked.append((uri.rpartition("/")[2], start, length))
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.open, 10)
        return super().get_range(uri, start, length, etag=etag)

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.asked) >= count, 10)

    def let_go(self) -> None:
        with self.changed:
            self.open = True
            self.changed.notify_all()


class WatchedStores(Stores):
    def __init__(self) -> None:
        super().__init__({})
        self.store = WatchedStore()

    def for_uri(self, uri):
        return self.store


@pytest.fixture
def stores() -> WatchedStores:
    return WatchedStores()


def plan(stores: WatchedStores, *sizes: int, scheme="s3") -> tuple[list[ObjectInfo], list[bytes]]:
    """Create objects of these sizes. They appear to be remote, so that reads ahead are worthwhile."""
    data = [bytes([65 + n]) * size for n, size in enumerate(sizes)]
    for number, piece in enumerate(data):
        stores.store.put(f"memory://b/{number}", piece)
    return [ObjectInfo(f"memory://b/{n}", size) for n, size in enumerate(sizes)], data


def whole(infos):
    return [Extent(info) for info in infos]


def test_objects_are_read_whole_and_in_order(stores):
    infos, data = plan(stores, 3000 * KIB, 0, 10, 700 * KIB)
    prefetch = Prefetch(stores, whole(infos), FlowSettings(range_bytes=512 * KIB))
    assert [b"".join(prefetch.chunks(n)) for n in range(4)] == data
    prefetch.close()


def test_first_read_is_small(stores):
    infos, _ = plan(stores, 5000 * KIB)
    prefetch = Prefetch(stores, whole(infos), FlowSettings())
    list(prefetch.chunks(0))
    prefetch.close()
    asked = sorted(stores.store.asked, key=lambda a: a[1])
    assert [a[2] for a in asked][:3] == [256 * KIB, 1024 * KIB, LOCAL_RANGE_BYTES]


def test_start_byte_applies_to_its_extent_only(stores):
    infos, data = plan(stores, 1000, 1000)
    prefetch = Prefetch(stores, [Extent(infos[0], 400), Extent(infos[1])], FlowSettings())
    assert b"".join(prefetch.chunks(0)) == data[0][400:]
    assert b"".join(prefetch.chunks(1)) == data[1]
    assert sorted(stores.store.asked) == [("0", 400, 600), ("1", 0, 1000)]
    prefetch.close()


def test_no_byte_after_a_range_is_read(stores):
    infos, data = plan(stores, 3000, 1000)
    prefetch = Prefetch(
        stores, [Extent(infos[0], 100, 900), Extent(infos[0], 900, 5000), Extent(infos[1])], FlowSettings()
    )
    assert [b"".join(prefetch.chunks(n)) for n in range(3)] == [data[0][100:900], data[0][900:], data[1]]
    prefetch.close()


def test_read_ahead_is_limited(stores):
    infos, data = plan(stores, *[100 * KIB] * 20)
    stores.store.open = False
    prefetch = Prefetch(stores, whole(infos), FlowSettings(prefetch_bytes_max=300 * KIB, prefetch_threads=20))
    stores.store.wait_for(1)
    assert len(prefetch._window) <= 3
    stores.store.let_go()
    for number in range(20):
        assert b"".join(prefetch.chunks(number)) == data[number]
        assert prefetch._window_bytes <= 300 * KIB
    prefetch.close()


def test_rest_of_a_broken_object_is_dropped(stores):
    infos, data = plan(stores, 2000 * KIB, 500)
    prefetch = Prefetch(stores, whole(infos), FlowSettings(range_bytes=256 * KIB))
    assert next(iter(prefetch.chunks(0)))
    assert b"".join(prefetch.chunks(1)) == data[1]
    prefetch.close()


def test_small_local_objects_are_read_together_and_fail_alone(stores):
    infos, data = plan(stores, *[100] * 70)
    missing = ObjectInfo("memory://b/gone", 100)
    kept = Stores()
    for info, piece in zip(infos, data, strict=True):
        kept.for_uri(info.uri).put(info.uri, piece)
    some = [*infos[:5], missing, *infos[5:]]
    prefetch = Prefetch(kept, whole(some), FlowSettings())
    assert len({id(response) for _, response, _ in prefetch._window}) < len(prefetch._window) / 10
    for number, info in enumerate(some):
        if info is missing:
            with pytest.raises(NotFoundError):
                list(prefetch.chunks(number))
            continue
        assert b"".join(prefetch.chunks(number)) == kept.for_uri(info.uri).get(info.uri)
    prefetch.close()


def test_skipped_reads_do_not_delay_others(stores):
    infos, data = plan(stores, *[100] * 40)
    prefetch = Prefetch(stores, whole(infos), FlowSettings())
    assert b"".join(prefetch.chunks(3)) == data[3]
    assert b"".join(prefetch.chunks(35)) == data[35]
    assert b"".join(prefetch.chunks(36)) == data[36]
    prefetch.close()


def test_error_is_raised_at_its_object(stores):
    infos, data = plan(stores, 100, 100)
    missing = ObjectInfo("memory://b/gone", 100)
    prefetch = Prefetch(stores, whole([infos[0], missing, infos[1]]), FlowSettings())
    assert b"".join(prefetch.chunks(0)) == data[0]
    with pytest.raises(NotFoundError):
        list(prefetch.chunks(1))
    assert b"".join(prefetch.chunks(2)) == data[1]
    prefetch.close()


def test_object_of_unknown_size_is_streamed(stores):
    infos, data = plan(stores, 3000)
    prefetch = Prefetch(stores, whole([ObjectInfo(infos[0].uri, None)]), FlowSettings())
    assert b"".join(prefetch.chunks(0)) == data[0]
    assert stores.store.asked == []
    prefetch.close()


@pytest.mark.parametrize("now_bytes", [0, 900, 1500])
def test_shrunken_object_raises(stores, now_bytes):
    """Without an ETag, bytes before the missing ones may have been delivered."""
    infos, data = plan(stores, 2000)
    stores.store.put(infos[0].uri, data[0][:now_bytes])
    prefetch = Prefetch(stores, whole([ObjectInfo(infos[0].uri, 2000)]), FlowSettings(range_bytes=1000))
    with pytest.raises(ChangedError, match=f"2000 bytes when it was listed, but ends at byte {now_bytes}"):
        list(prefetch.chunks(0))
    prefetch.close()
