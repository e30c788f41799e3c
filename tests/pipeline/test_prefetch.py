import threading

import pytest

from headrace.core.errors import ChangedError, NotFoundError
from headrace.pipeline.prefetch import LOCAL_RANGE_BYTES, Extent, Prefetch
from headrace.pipeline.settings import FlowSettings
from headrace.storage.contract import ObjectInfo
from headrace.storage.memory import MemoryStore
from headrace.storage.resolve import Stores

KIB = 1024


class WatchedStore(MemoryStore):
    """Tells which ranges were asked for, and holds them back until the test opens the gate."""

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
    """Objects of these sizes; they pretend to be far away, where there is something to hide."""
    data = [bytes([65 + n]) * size for n, size in enumerate(sizes)]
    for number, piece in enumerate(data):
        stores.store.put(f"memory://b/{number}", piece)
    return [ObjectInfo(f"memory://b/{n}", size) for n, size in enumerate(sizes)], data


def whole(infos):
    return [Extent(info) for info in infos]


def test_every_object_comes_back_whole_and_in_order(stores):
    infos, data = plan(stores, 3000 * KIB, 0, 10, 700 * KIB)
    prefetch = Prefetch(stores, whole(infos), FlowSettings(range_bytes=512 * KIB))
    assert [b"".join(prefetch.chunks(n)) for n in range(4)] == data
    prefetch.close()


def test_the_first_read_is_small_so_that_first_records_are_there_soon(stores):
    infos, _ = plan(stores, 5000 * KIB)
    prefetch = Prefetch(stores, whole(infos), FlowSettings())
    list(prefetch.chunks(0))
    prefetch.close()
    asked = sorted(stores.store.asked, key=lambda a: a[1])
    assert [a[2] for a in asked][:3] == [256 * KIB, 1024 * KIB, LOCAL_RANGE_BYTES]


def test_reading_begins_at_the_byte_that_is_asked_for_of_the_first_object_alone(stores):
    infos, data = plan(stores, 1000, 1000, 1000)
    prefetch = Prefetch(
        stores, [Extent(infos[0]), Extent(infos[1], 400), Extent(infos[2])], FlowSettings(), first_index=1
    )
    assert b"".join(prefetch.chunks(1)) == data[1][400:]
    assert b"".join(prefetch.chunks(2)) == data[2]
    assert "0" not in {name for name, _, _ in stores.store.asked}
    prefetch.close()


def test_of_a_range_no_byte_behind_it_is_read(stores):
    infos, data = plan(stores, 3000, 1000)
    prefetch = Prefetch(
        stores, [Extent(infos[0], 100, 900), Extent(infos[0], 900, 5000), Extent(infos[1])], FlowSettings()
    )
    assert [b"".join(prefetch.chunks(n)) for n in range(3)] == [data[0][100:900], data[0][900:], data[1]]
    prefetch.close()


def test_no_more_is_read_ahead_than_the_settings_allow(stores):
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


def test_what_is_left_of_an_object_that_broke_is_dropped(stores):
    infos, data = plan(stores, 2000 * KIB, 500)
    prefetch = Prefetch(stores, whole(infos), FlowSettings(range_bytes=256 * KIB))
    assert next(iter(prefetch.chunks(0)))
    assert b"".join(prefetch.chunks(1)) == data[1]
    prefetch.close()


def test_small_local_objects_are_read_together_and_fail_alone(stores):
    infos, data = plan(stores, *[100] * 70)
    gone = ObjectInfo("memory://b/gone", 100)
    kept = Stores()
    for info, piece in zip(infos, data, strict=True):
        kept.for_uri(info.uri).put(info.uri, piece)
    some = [*infos[:5], gone, *infos[5:]]
    prefetch = Prefetch(kept, whole(some), FlowSettings())
    assert len({id(answer) for _, answer, _ in prefetch._window}) < len(prefetch._window) / 10
    for number, info in enumerate(some):
        if info is gone:
            with pytest.raises(NotFoundError):
                list(prefetch.chunks(number))
            continue
        assert b"".join(prefetch.chunks(number)) == kept.for_uri(info.uri).get(info.uri)
    prefetch.close()


def test_what_is_passed_over_costs_nothing_that_others_wait_for(stores):
    infos, data = plan(stores, *[100] * 40)
    prefetch = Prefetch(stores, whole(infos), FlowSettings())
    assert b"".join(prefetch.chunks(3)) == data[3]
    assert b"".join(prefetch.chunks(35)) == data[35]
    assert b"".join(prefetch.chunks(36)) == data[36]
    prefetch.close()


def test_an_error_is_raised_at_its_object_and_not_before(stores):
    infos, data = plan(stores, 100, 100)
    gone = ObjectInfo("memory://b/gone", 100)
    prefetch = Prefetch(stores, whole([infos[0], gone, infos[1]]), FlowSettings())
    assert b"".join(prefetch.chunks(0)) == data[0]
    with pytest.raises(NotFoundError):
        list(prefetch.chunks(1))
    assert b"".join(prefetch.chunks(2)) == data[1]
    prefetch.close()


def test_an_object_of_unknown_size_is_streamed(stores):
    infos, data = plan(stores, 3000)
    prefetch = Prefetch(stores, whole([ObjectInfo(infos[0].uri, None)]), FlowSettings())
    assert b"".join(prefetch.chunks(0)) == data[0]
    assert stores.store.asked == []
    prefetch.close()


@pytest.mark.parametrize("now_bytes", [0, 900, 1500])
def test_an_object_that_shrank_is_never_taken_for_whole(stores, now_bytes):
    """Where no ETag tells; what came before the missing bytes may have been given."""
    infos, data = plan(stores, 2000)
    stores.store.put(infos[0].uri, data[0][:now_bytes])
    prefetch = Prefetch(stores, whole([ObjectInfo(infos[0].uri, 2000)]), FlowSettings(range_bytes=1000))
    with pytest.raises(ChangedError, match=f"2000 bytes when it was listed, and ends at {now_bytes} now"):
        list(prefetch.chunks(0))
    prefetch.close()
