"""The cloud store over a faulty HTTP server and over scripted buckets."""

import contextlib
import hashlib
import itertools

import pytest

from cases import for_each
from headrace.core.clock import RetryPolicy, TransientFault
from headrace.core.errors import (
    AlreadyExistsError,
    ChangedError,
    ConfigError,
    NotFoundError,
    StorageError,
    UnavailableError,
)
from headrace.storage import Stores
from headrace.storage.cloud import Entry, RangeResponse
from headrace.storage.cloud_store import FIRST_RANGE_BYTES, RANGE_BYTES_MAX, CloudStore
from headrace.storage.retry import Retrier
from headrace.testing import ManualClock
from servers.http_files import Fault

DATA = bytes(range(256)) * 20_000
URI = "s3://box/in/k"


@pytest.fixture
def clock():
    return ManualClock(auto=True)


@pytest.fixture
def store(http_files, clock):
    http_files.objects["/box/in/k"] = DATA
    return Stores(http_files.s3_environ, clock=clock, timeout_s=0.3, seed=1).for_uri(URI)


def test_stream_range_lengths_grow(http_files, store):
    http_files.objects["/box/in/k"] = DATA * 5
    assert b"".join(store.stream(URI)) == DATA * 5
    ranges = [r.removeprefix("bytes=").split("-") for r in http_files.ranges_asked()]
    assert [int(end) - int(start) + 1 for start, end in ranges][:4] == [
        FIRST_RANGE_BYTES,
        FIRST_RANGE_BYTES * 4,
        FIRST_RANGE_BYTES * 16,
        RANGE_BYTES_MAX,
    ]


@pytest.mark.parametrize("ranges", [True, False])
def test_stream_survives_every_transient_fault(http_files, store, clock, ranges):
    http_files.ranges = ranges
    stream = store.stream(URI)
    received = [next(stream)]
    http_files.faults = [
        Fault(status=500),
        Fault(status=503, body=b"<Error><Code>SlowDown</Code></Error>"),
        Fault(status=429),
        Fault(cut_at=100_000),
        Fault(cut_at=0),
        Fault(hang=True),
        Fault(cut_at=1_000_000),
    ]
    if not ranges:
        # The response is one long body, so only an interruption makes the client request again.
        http_files.faults.insert(0, Fault(cut_at=2_000_000))
        stream = store.stream(URI)
        received = []
    assert b"".join(received) + b"".join(stream) == DATA
    assert http_files.faults == []
    assert clock.slept_s


@pytest.mark.parametrize("ranges", [True, False])
def test_object_changed_during_read_raises_changed(http_files, store, ranges):
    http_files.ranges = ranges
    if not ranges:
        http_files.faults = [None, Fault(cut_at=2_000_000)]
    stream = store.stream(URI)
    next(stream)
    http_files.objects["/box/in/k"] = DATA[::-1]
    with pytest.raises(ChangedError, match=URI):
        list(stream)


def test_shrunken_object_raises_changed_without_etag(http_files, store):
    http_files.etags = False
    stream = store.stream(URI)
    next(stream)
    http_files.objects["/box/in/k"] = DATA[:100]
    with pytest.raises(ChangedError, match="had 5120000 bytes"):
        list(stream)


def test_every_operation_retries_until_the_budget_is_spent(http_files, store, clock):
    operations = (
        lambda: store.get(URI),
        lambda: store.head(URI),
        lambda: store.get_range(URI, 0, 5),
        lambda: list(store.stream(URI)),
        lambda: store.put(URI, b""),
        lambda: store.put_if_absent(URI, b""),
        lambda: store.delete(URI),
        lambda: list(store.list("s3://box/in/")),
    )
    for number, operation in enumerate(operations, 1):
        http_files.faults = [Fault(status=503)] * 10_000
        with pytest.raises(UnavailableError, match="s3://box/in/"):
            operation()
        assert clock.now() == pytest.approx(120 * number)


@for_each("ranges", [True, False])
def test_get_range_works_on_a_server_that_ignores_ranges(http_files, store, ranges):
    http_files.ranges = ranges
    http_files.faults = [Fault(cut_at=10), Fault(cut_at=10)]
    assert store.get_range(URI, 2_000_000, 300) == DATA[2_000_000:2_000_300]


def test_listed_key_with_empty_segment_raises_not_supported(http_files, store):
    page = b"""<?xml version="1.0" encoding="UTF-8"?><ListBucketResult><Name>box</Name><KeyCount>1</KeyCount>
    <MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated><Contents><Key>in//k</Key>
    <LastModified>2026-11-21T08:00:00.000Z</LastModified><ETag>"1"</ETag><Size>1</Size></Contents>
    </ListBucketResult>"""
    http_files.pages["/box?list-type=2&prefix=in%2F"] = ("application/xml", page)
    with pytest.raises(StorageError, match="not supported"):
        list(store.list("s3://box/in/"))


def test_invalid_keys_raise_before_any_request(http_files, store):
    for operation in (store.get, store.head, store.delete, store.writer, lambda u: store.put(u, b"")):
        for uri in ("s3://box/a//b", "s3://box/../b", "s3://box/", "s3://box"):
            with pytest.raises(ConfigError):
                operation(uri)
    assert http_files.requests == []


class _Bucket:
    """An in-memory bucket with scripted failures and a scripted listing order."""

    uri = "s3://box"

    def __init__(self, keys=(), *, sorts_keys=True, page_entries=3) -> None:
        self.sorts_keys = sorts_keys
        self.objects = dict.fromkeys(keys, b"x")
        self.markers: set[str] = set()
        self.page_entries = page_entries
        self.break_listing_after = itertools.repeat(10**9)
        self.lose_response = False
        self.listed: list[tuple[str, str]] = []
        self.entries_listed = 0

    def list(self, folder: str, after: str = ""):
        self.listed.append((folder, after))
        below = f"{folder}/" if folder else ""
        keys = [k for k in self.objects if k.startswith(below) and k > after]
        keys = sorted(keys) if self.sorts_keys else keys
        pages_left = next(self.break_listing_after)
        for page in _batched(keys, self.page_entries):
            if pages_left == 0:
                raise TransientFault("cut")
            pages_left -= 1
            self.entries_listed += len(page)
            yield [self._entry(k) for k in page]

    def head(self, key: str) -> Entry:
        if key not in self.objects or key in self.markers:
            raise NotFoundError(f"s3://box/{key}", "no such object")
        return self._entry(key)

    def get_range(self, key: str, start: int, length: int, etag: str = "") -> RangeResponse:
        data = self.objects[key]
        return RangeResponse(data[start : start + length], len(data), etag)

    def create(self, key: str, data: bytes) -> None:
        if key in self.objects:
            raise AlreadyExistsError(f"s3://box/{key}", "there already")
        self.objects[key] = data
        if self.lose_response:
            self.lose_response = False
            raise TransientFault("500")

    def _entry(self, key: str) -> Entry:
        return Entry(key, len(self.objects[key]), hashlib.md5(key.encode()).hexdigest(), 0.0)


def _batched(keys, count):
    return [keys[i : i + count] for i in range(0, len(keys), count)]


def _store(bucket: _Bucket, *, retry_s: float = 60.0) -> CloudStore:
    clock = ManualClock(auto=True)
    return CloudStore("s3", lambda scheme, name: bucket, Retrier(clock, RetryPolicy(retry_s=retry_s), seed=1))


def _listed(store: CloudStore, prefix: str) -> list[str]:
    return [i.uri.removeprefix("s3://box/") for i in store.list(f"s3://box/{prefix}")]


KEYS_IN_TREE_ORDER = [
    "in/a/x",
    "in/a/y",
    "in/a-b",
    "in/a.b",
    "in/num-1",
    "in/num-2",
    "in/num/3",
    "in/text",
    "other",
]


@for_each("sorts_keys", [True, False])
@for_each("prefix", ["", "in/", "in/a", "in/num", "in/num-", "in/num/", "in/z", "o", "i"])
def test_string_prefix_listing_is_sorted_for_any_server_order(sorts_keys, prefix):
    store = _store(_Bucket(KEYS_IN_TREE_ORDER, sorts_keys=sorts_keys))
    assert _listed(store, prefix) == sorted(k for k in KEYS_IN_TREE_ORDER if k.startswith(prefix))


@for_each("sorts_keys", [True, False])
def test_interrupted_listing_resumes_without_loss_or_duplicates(sorts_keys):
    keys = [f"in/{n:03}" for n in range(30)]
    bucket = _Bucket(keys, sorts_keys=sorts_keys)
    bucket.break_listing_after = itertools.chain([2, 0, 3], itertools.repeat(10**9))
    assert _listed(_store(bucket), "in/") == keys
    if sorts_keys:
        assert bucket.listed == [("in", ""), ("in", "in/005"), ("in", "in/005"), ("in", "in/014")]


def test_sorted_listing_requests_only_keys_near_the_prefix():
    bucket = _Bucket([f"in/{letter}{n}" for letter in "abcdefgh" for n in range(10)])
    assert len(_listed(_store(bucket), "in/d")) == 10
    assert bucket.listed == [("in", "in/c")]
    assert bucket.entries_listed <= 10 + 10 + bucket.page_entries


def test_unsorted_listing_of_a_sorting_server_raises():
    bucket = _Bucket(KEYS_IN_TREE_ORDER, sorts_keys=False)
    bucket.sorts_keys = True
    bucket.objects = dict.fromkeys(KEYS_IN_TREE_ORDER, b"x")
    pages = [[bucket._entry(k) for k in KEYS_IN_TREE_ORDER]]
    bucket.list = lambda folder, after="": iter(pages)
    with pytest.raises(StorageError, match="out of order at 'in/a-b'"):
        _listed(_store(bucket), "in/")


@for_each("sorts_keys", [True, False])
def test_listing_omits_folder_markers_and_keeps_empty_objects(sorts_keys):
    bucket = _Bucket(["in/empty", "in/folder", "in/folder/k"], sorts_keys=sorts_keys)
    bucket.objects |= {"in/empty": b"", "in/folder": b""}
    bucket.markers = {"in/folder"}
    assert _listed(_store(bucket), "in/") == ["in/empty", "in/folder/k"]


def test_folder_marker_may_be_sorted_by_its_key_with_the_slash():
    bucket = _Bucket()
    bucket.objects = {"in/a": b"x", "in/a-b": b"x", "in/empty": b""}
    bucket.markers = {"in/a", "in/b"}
    listed = ["in/a", "in/a-b", "in/a/", "in/a/x", "in/b/", "in/b/x", "in/empty"]
    entries = [Entry(k.rstrip("/"), 0 if k[-1] in "/y" else 1, "", 0.0) for k in listed]
    bucket.list = lambda folder, after="": iter([entries])
    assert _listed(_store(bucket), "in/") == ["in/a", "in/a-b", "in/a/x", "in/b/x", "in/empty"]


class _Uploads:
    """A bucket that has lost an upload when it is completed. `stored` is the object that exists
    then.
    """

    uri = "s3://box"

    def __init__(self, stored: bytes | None, parts_taken: int | None = None) -> None:
        self.stored = stored
        self.parts_taken = parts_taken

    def put_parts(self, key: str, parts, *, part_bytes: int, parts_at_once: int, metadata) -> None:
        b"".join(itertools.islice(parts, self.parts_taken))
        raise NotFoundError(f"s3://box/{key}", "no such object")

    def get_range(self, key: str, start: int, length: int, etag: str = "") -> RangeResponse:
        if self.stored is None:
            raise NotFoundError(f"s3://box/{key}", "no such object")
        return RangeResponse(self.stored[start : start + length], len(self.stored), etag)


@for_each("stored", ["complete", "same length", "missing", "first part"])
def test_upload_whose_response_was_lost_succeeds_only_if_stored(monkeypatch, stored):
    monkeypatch.setattr("headrace.storage.cloud_store.PART_BYTES", 100_000)
    objects = {"complete": DATA, "same length": DATA[::-1], "missing": None, "first part": DATA[:100_000]}
    bucket = _Uploads(objects[stored], parts_taken=1 if stored == "first part" else None)
    writer = _store(bucket).writer(URI)
    # The upload may fail before `write` returns; then `write` raises.
    with (
        contextlib.nullcontext()
        if stored == "complete"
        else pytest.raises(StorageError, match="no longer has this upload")
    ):
        writer.write(DATA)
        writer.close()


def test_put_if_absent_succeeds_when_its_own_response_was_lost():
    bucket = _Bucket()
    bucket.lose_response = True
    _store(bucket).put_if_absent("s3://box/claim", b"mine")
    assert bucket.objects == {"claim": b"mine"}


def test_put_if_absent_raises_when_other_bytes_exist():
    bucket = _Bucket()
    bucket.objects["claim"] = b"mine too"
    with pytest.raises(AlreadyExistsError, match="s3://box/claim"):
        _store(bucket).put_if_absent("s3://box/claim", b"mine")


def test_put_if_absent_retries_when_the_conflicting_object_vanishes():
    bucket = _Bucket()
    errors = iter([AlreadyExistsError("u", "conflict with a write that has not ended")])

    def create(key: str, data: bytes) -> None:
        if error := next(errors, None):
            raise error
        bucket.objects[key] = data

    bucket.create = create
    bucket.get_range = lambda *_: (_ for _ in ()).throw(NotFoundError("u", "gone"))
    _store(bucket).put_if_absent("s3://box/claim", b"mine")
    assert bucket.objects == {"claim": b"mine"}


def test_put_if_absent_rejects_more_than_one_request(monkeypatch):
    monkeypatch.setattr("headrace.storage.cloud_store.ONE_REQUEST_BYTES_MAX", 10)
    with pytest.raises(StorageError, match="at most 10 bytes"):
        _store(_Bucket()).put_if_absent("s3://box/claim", bytes(11))
