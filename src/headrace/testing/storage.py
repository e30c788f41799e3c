"""The conformance suite for object stores.

Each check takes a store and an unused prefix. It raises AssertionError with the broken guarantee::

    @pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
    def test_my_store(check, my_store, my_prefix):
        check(my_store, my_prefix)
"""

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from headrace.core.errors import (
    AlreadyExistsError,
    ChangedError,
    NotFoundError,
)
from headrace.storage.contract import Store
from headrace.storage.local import LocalStore
from headrace.storage.uri import join
from headrace.testing.expect import equal, raises, true

StoreCheck = Callable[[Store, str], None]
WRITERS = 8
RACE_ROUNDS = 2
LARGE_BYTES = 20 << 20
AWKWARD_NAMES = (
    "plain.csv",
    "a space.csv",
    "per%20cent",
    "100%",
    "a+b=c&d",
    "q?x=1#frag",
    "ünï/日本.csv",
    "emoji-\N{WATER WAVE}",
    "(round) [square] {curly}",
    "comma,semi;colon:at@",
    "'quotes'\"double\"",
    "~tilde.and..dots",
)


def check_store(make: Callable[[], tuple[Store, str]]) -> None:
    """Run every check. `make` returns a store and a new prefix (ending in a slash) each time."""
    for check in STORE_CHECKS:
        check(*make())


def check_put_and_get(store: Store, prefix: str) -> None:
    """Check that every read method returns the stored bytes, also after replacement and when empty."""
    uri = join(prefix, "object")
    for data in (b"first", _bytes(300_000), b""):
        store.put(uri, data)
        equal(store.get(uri), data, "get after put")
        equal(b"".join(store.stream(uri)), data, "stream after put")
        equal(store.head(uri).size_bytes, len(data), "head's size")


def check_ranges(store: Store, prefix: str) -> None:
    """Check that ranges are exact, short only at the object's end, and empty after the end.

    Streams start at any byte.
    """
    uri, data = join(prefix, "object"), _bytes(2_500_000)
    store.put(uri, data)
    for start, length in (
        (0, 1),
        (0, len(data)),
        (10, 0),
        (7, 1_234_567),
        (len(data) - 3, 10),
        (len(data), 5),
    ):
        equal(store.get_range(uri, start, length), data[start : start + length], f"range {start}+{length}")
    equal(store.get_range(uri, len(data) + 5, 5), b"", "a range after the end")
    for start in (1, 262_144, 1_048_577, len(data) - 1, len(data), len(data) + 7):
        equal(b"".join(store.stream(uri, start=start)), data[start:], f"stream from {start}")


def check_missing_objects(store: Store, prefix: str) -> None:
    """Check operations on a missing object.

    Reads and `head` raise NotFoundError, `delete` does nothing, and `list` is empty.
    """
    uri = join(prefix, "nothing")
    raises(NotFoundError, lambda: store.get(uri), "get")
    raises(NotFoundError, lambda: store.get_range(uri, 0, 1), "get_range")
    raises(NotFoundError, lambda: b"".join(store.stream(uri)), "stream")
    error = raises(NotFoundError, lambda: store.head(uri), "head")
    true(uri in str(error), f"the error does not name the object {uri}: {error}")
    store.delete(uri)
    equal(list(store.list(prefix)), [], "a listing of an empty prefix")


def check_delete(store: Store, prefix: str) -> None:
    """Check that `delete` removes one object only and can be repeated."""
    gone, stays = join(prefix, "gone"), join(prefix, "gone-not")
    store.put(gone, b"1")
    store.put(stays, b"2")
    store.delete(gone)
    store.delete(gone)
    raises(NotFoundError, lambda: store.get(gone), "get after delete")
    equal(_listed(store, prefix), [stays], "a listing after delete")


def check_list_by_string_prefix(store: Store, prefix: str) -> None:
    """Check that `list` takes any string prefix, even within a name.

    The result is sorted by URI as one string, across all folders.
    """
    names = (
        "a",
        "a-b",
        "a.b",
        "a/b",
        "a/b/c",
        "a0",
        "ab/c",
        "b",
        "pre/num-1",
        "pre/num-2",
        "pre/text",
        "pre2",
    )
    # A file system cannot have an object and a folder of one name.
    uris = [join(prefix, n) for n in names if n not in {"a", "a/b"}]
    for index, uri in enumerate(reversed(uris)):
        store.put(uri, b"x" * (index + 1))
    for start in ("", "a", "a/", "a/b/", "a-", "pre/num", "pre", "pre/num-1", "pre/nun", "b/"):
        wanted = sorted(u for u in uris if u.startswith(prefix + start))
        equal(_listed(store, prefix + start), wanted, f"a listing of {start!r}")
    for info in store.list(prefix):
        # The times may differ: the two calls may report them with different precision.
        head = store.head(info.uri)
        equal(
            (head.uri, head.size_bytes, head.etag), (info.uri, info.size_bytes, info.etag), "head and listing"
        )


def check_etags(store: Store, prefix: str) -> None:
    """Check that an ETag changes with the bytes only, and guards ranges and streams."""
    uri = join(prefix, "object")
    store.put(uri, b"one")
    old = store.head(uri).etag
    true(bool(old), "head returns no ETag")
    equal(store.head(uri).etag, old, "the ETag of an unchanged object")
    equal(store.get_range(uri, 0, 2, etag=old), b"on", "a range with the right ETag")
    equal(b"".join(store.stream(uri, etag=old)), b"one", "a stream with the right ETag")
    store.put(uri, b"two!")
    true(store.head(uri).etag != old, "the ETag did not change with the bytes")
    raises(ChangedError, lambda: store.get_range(uri, 0, 2, etag=old), "a range of a changed object")
    raises(ChangedError, lambda: b"".join(store.stream(uri, etag=old)), "a stream of a changed object")


def check_replacement_during_read(store: Store, prefix: str) -> None:
    """Check that a stream of a replaced object returns the old bytes only.

    It either reaches their end or raises ChangedError.
    """
    uri = join(prefix, "object")
    old, new = _bytes(12_000_000), _bytes(12_000_000, seed=2)
    store.put(uri, old)
    stream = store.stream(uri, etag=store.head(uri).etag)
    received = [next(stream)]
    store.put(uri, new)
    try:
        received.extend(stream)
    except ChangedError:
        true(old.startswith(b"".join(received)), "the stream mixed bytes of two versions")
    else:
        equal(b"".join(received), old, "a stream of an object that was replaced")


def check_put_if_absent(store: Store, prefix: str) -> None:
    """Check that the first write wins. The same bytes are accepted again; other bytes are refused."""
    uri = join(prefix, "claim")
    store.put_if_absent(uri, b"mine")
    store.put_if_absent(uri, b"mine")
    for other in (b"yours", b"mine and more", b"min", b""):
        error = raises(AlreadyExistsError, lambda data=other: store.put_if_absent(uri, data), "other bytes")
        true(uri in str(error), f"the error does not name the object {uri}: {error}")
    equal(store.get(uri), b"mine", "the claim")


def check_put_if_absent_race(store: Store, prefix: str) -> None:
    """Check that exactly one of `WRITERS` concurrent threads wins a name and stores its bytes."""
    for round_number in range(RACE_ROUNDS):
        uri = join(prefix, f"race-{round_number}")
        barrier = threading.Barrier(WRITERS)

        def claim(number: int, uri: str = uri, barrier: threading.Barrier = barrier) -> bool:
            barrier.wait(timeout=30)
            try:
                store.put_if_absent(uri, b"writer %d" % number)
            except AlreadyExistsError:
                return False
            return True

        with ThreadPoolExecutor(WRITERS) as pool:
            won = [n for n, wins in enumerate(pool.map(claim, range(WRITERS))) if wins]
        equal(len(won), 1, "the number of winners")
        equal(store.get(uri), b"writer %d" % won[0], "the winner's bytes")


def check_writer(store: Store, prefix: str) -> None:
    """Check that an object is visible only after `close`.

    A second `close` and an `abort` after it do nothing.
    """
    uri = join(prefix, "written")
    with store.writer(uri) as writer:
        for number in range(100):
            writer.write(b"%d\n" % number)
        equal(_listed(store, prefix), [], "a listing before close")
        raises(NotFoundError, lambda: store.get(uri), "get before close")
    writer.close()
    writer.abort()
    equal(store.get(uri), b"".join(b"%d\n" % n for n in range(100)), "the written bytes")
    with store.writer(join(prefix, "empty")):
        pass
    equal(store.get(join(prefix, "empty")), b"", "an empty object")


def check_writer_replaces(store: Store, prefix: str) -> None:
    """Check that an existing object is replaced at `close`, not before."""
    uri = join(prefix, "written")
    store.put(uri, b"before")
    with store.writer(uri) as writer:
        writer.write(b"after")
        equal(store.get(uri), b"before", "the object while a writer is open")
    equal(store.get(uri), b"after", "the object after close")


def check_writer_aborts(store: Store, prefix: str) -> None:
    """Check that an exception or `abort` leaves no object, small or large.

    A second `abort` does nothing.
    """
    for size in (10, LARGE_BYTES):
        uri = join(prefix, f"aborted-{size}")
        writer = store.writer(uri)
        with suppress(InterruptedError), writer:
            writer.write(bytes(size))
            _interrupt()
        writer.abort()
        writer = store.writer(uri)
        writer.write(bytes(size))
        writer.abort()
        writer.abort()
        writer.close()
    equal(_listed(store, prefix), [], "a listing after abort")


def check_metadata(store: Store, prefix: str) -> None:
    """Check that an object keeps the metadata of its writer until it is replaced.

    A file system without extended attributes keeps none.
    """
    metadata = {"headracejob": "01939f00", "headracedigest": "sha256:00ff"}
    for size in (10, LARGE_BYTES):
        uri = join(prefix, f"described-{size}")
        with store.writer(uri, metadata) as writer:
            writer.write(bytes(size))
        found = dict(store.metadata(uri))
        true(
            found == metadata or (not found and isinstance(store, LocalStore)),
            f"the metadata of an object of {size} bytes is {found}, not {metadata}",
        )
        store.put(uri, b"other")
        equal(dict(store.metadata(uri)), {}, "the metadata after a replacement without any")
    raises(NotFoundError, lambda: store.metadata(join(prefix, "missing")), "the metadata of a missing object")


def check_large_objects(store: Store, prefix: str) -> None:
    """Check that `LARGE_BYTES` written in uneven pieces are read back unchanged.

    The object is invisible before `close`.
    """
    uri, data = join(prefix, "large"), _bytes(LARGE_BYTES)
    view, at, sizes = memoryview(data), 0, random.Random(1)  # noqa: S311 - reproducible sizes
    with store.writer(uri) as writer:
        while at < len(data):
            size = sizes.choice((1, 1000, 65_536, 3_000_001, 9_000_000))
            writer.write(bytes(view[at : at + size]))
            at += size
        equal(_listed(store, prefix), [], "a listing before close")
    equal(store.head(uri).size_bytes, len(data), "head's size")
    true(b"".join(store.stream(uri)) == data, "a large object differs after a round trip")
    true(
        b"".join(store.stream(uri, start=9_999_999)) == data[9_999_999:], "a stream from a start byte differs"
    )
    true(store.get_range(uri, 8_388_600, 100) == data[8_388_600:8_388_700], "a range across parts differs")


def check_awkward_names(store: Store, prefix: str) -> None:
    """Check names with spaces, percent signs, plus, question marks and letters of several scripts."""
    uris = [join(prefix, name) for name in AWKWARD_NAMES]
    for uri in uris:
        store.put(uri, uri.encode())
    for uri in uris:
        equal(store.get(uri), uri.encode(), f"the object {uri}")
        equal(store.head(uri).uri, uri, "head's URI")
    equal(_listed(store, prefix), sorted(uris), "a listing of awkward names")
    for uri in uris:
        store.delete(uri)
    equal(_listed(store, prefix), [], "a listing after deleting them")


def check_threads(store: Store, prefix: str) -> None:
    """Check that one store serves many threads, each of which reads back its own bytes."""

    def work(number: int) -> bool:
        uri, data = join(prefix, f"thread-{number}"), _bytes(10_000, seed=number)
        store.put(uri, data)
        return store.get(uri) == data and b"".join(store.stream(uri)) == data

    with ThreadPoolExecutor(WRITERS) as pool:
        true(all(pool.map(work, range(4 * WRITERS))), "a thread read other bytes than it wrote")
    equal(len(_listed(store, prefix)), 4 * WRITERS, "the number of objects")


STORE_CHECKS: tuple[StoreCheck, ...] = (
    check_put_and_get,
    check_ranges,
    check_missing_objects,
    check_delete,
    check_list_by_string_prefix,
    check_etags,
    check_replacement_during_read,
    check_put_if_absent,
    check_put_if_absent_race,
    check_writer,
    check_writer_replaces,
    check_writer_aborts,
    check_metadata,
    check_large_objects,
    check_awkward_names,
    check_threads,
)
"""Every check of a store that reads and writes."""


def check_reading(store: Store, uri: str, data: bytes) -> None:
    """Check a read-only store. `uri` names an unchanging object of the bytes `data` (at least 100)."""
    equal(store.get(uri), data, "get")
    equal(b"".join(store.stream(uri)), data, "stream")
    for start in (1, len(data) // 2, len(data) - 1, len(data)):
        equal(b"".join(store.stream(uri, start=start)), data[start:], f"stream from {start}")
    for start, length in ((0, 1), (10, 0), (5, 50), (len(data) - 3, 10), (len(data), 5), (len(data) + 5, 5)):
        equal(store.get_range(uri, start, length), data[start : start + length], f"range {start}+{length}")
    info = store.head(uri)
    equal(info.uri, uri, "head's URI")
    true(
        info.size_bytes in {None, len(data)},
        f"head's size is {info.size_bytes}, expected {len(data)} or None",
    )
    equal(b"".join(store.stream(uri, etag=info.etag)), data, "stream with the right ETag")
    if info.etag:
        raises(
            ChangedError, lambda: b"".join(store.stream(uri, etag='"another"')), "stream with another ETag"
        )
    missing = uri + "-missing"
    raises(NotFoundError, lambda: store.get(missing), "get of a missing object")
    raises(NotFoundError, lambda: store.head(missing), "head of a missing object")
    raises(NotFoundError, lambda: b"".join(store.stream(missing)), "stream of a missing object")
    raises(NotFoundError, lambda: store.get_range(missing, 0, 1), "range of a missing object")


def _interrupt() -> None:
    raise InterruptedError


def _bytes(count: int, *, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(count)  # noqa: S311 - reproducible on purpose


def _listed(store: Store, prefix: str) -> list[str]:
    return [info.uri for info in store.list(prefix)]
