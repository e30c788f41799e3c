"""Cloud objects over a server that fails as it is told, and over a bucket that we play ourselves."""

import contextlib
import hashlib
import itertools

import pytest

from headrace.core.errors import (
    AlreadyExistsError,
    ChangedError,
    ConfigError,
    NotFoundError,
    StorageError,
    UnavailableError,
)
from headrace.core.retry import RetryPolicy
from headrace.storage import Stores
from headrace.storage.cloud import Entry, Piece
from headrace.storage.objects import FIRST_RANGE_BYTES, RANGE_BYTES_MAX, CloudStore
from headrace.storage.retry import Retrier, TransientFault
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


def test_ranges_begin_small_and_grow(http_files, store):
    http_files.objects["/box/in/k"] = DATA * 5
    assert b"".join(store.stream(URI)) == DATA * 5
    asked = [r.removeprefix("bytes=").split("-") for r in http_files.ranges_asked()]
    assert [int(end) - int(start) + 1 for start, end in asked][:4] == [
        FIRST_RANGE_BYTES,
        FIRST_RANGE_BYTES * 4,
        FIRST_RANGE_BYTES * 16,
        RANGE_BYTES_MAX,
    ]


@pytest.mark.parametrize("ranges", [True, False])
def test_trouble_of_every_kind_in_mid_stream_costs_no_byte(http_files, store, clock, ranges):
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
        # One long answer: only a break of its own makes the client ask again.
        http_files.faults.insert(0, Fault(cut_at=2_000_000))
        stream = store.stream(URI)
        received = []
    assert b"".join(received) + b"".join(stream) == DATA
    assert http_files.faults == []
    assert clock.slept_s


@pytest.mark.parametrize("ranges", [True, False])
def test_an_object_that_changes_in_mid_read_is_noticed(http_files, store, ranges):
    http_files.ranges = ranges
    if not ranges:
        http_files.faults = [None, Fault(cut_at=2_000_000)]
    stream = store.stream(URI)
    next(stream)
    http_files.objects["/box/in/k"] = DATA[::-1]
    with pytest.raises(ChangedError, match=URI):
        list(stream)


def test_an_object_that_is_shorter_now_has_changed_also_without_an_etag(http_files, store):
    http_files.etags = False
    stream = store.stream(URI)
    next(stream)
    http_files.objects["/box/in/k"] = DATA[:100]
    with pytest.raises(ChangedError, match="had 5120000 bytes"):
        list(stream)


def test_every_verb_retries_and_then_gives_up(http_files, store, clock):
    verbs = (
        lambda: store.get(URI),
        lambda: store.head(URI),
        lambda: store.get_range(URI, 0, 5),
        lambda: list(store.stream(URI)),
        lambda: store.put(URI, b""),
        lambda: store.put_if_absent(URI, b""),
        lambda: store.delete(URI),
        lambda: list(store.list("s3://box/in/")),
    )
    for number, verb in enumerate(verbs, 1):
        http_files.faults = [Fault(status=503)] * 10_000
        with pytest.raises(UnavailableError, match="s3://box/in/"):
            verb()
        assert clock.now() == pytest.approx(120 * number)


@pytest.mark.parametrize("ranges", [True, False])
def test_a_range_of_a_server_that_ignores_ranges_reads_no_further_than_needed(http_files, store, ranges):
    http_files.ranges = ranges
    http_files.faults = [Fault(cut_at=10), Fault(cut_at=10)]
    assert store.get_range(URI, 2_000_000, 300) == DATA[2_000_000:2_000_300]


def test_a_key_that_the_client_cannot_name_is_explained(http_files, store):
    page = b"""<?xml version="1.0" encoding="UTF-8"?><ListBucketResult><Name>box</Name><KeyCount>1</KeyCount>
    <MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated><Contents><Key>in//k</Key>
    <LastModified>2026-11-21T08:00:00.000Z</LastModified><ETag>"1"</ETag><Size>1</Size></Contents></ListBucketResult>"""
    http_files.pages["/box?list-type=2&prefix=in%2F"] = ("application/xml", page)
    with pytest.raises(StorageError, match="not supported"):
        list(store.list("s3://box/in/"))


def test_keys_are_checked_before_anything_is_sent(http_files, store):
    for verb in (store.get, store.head, store.delete, store.writer, lambda u: store.put(u, b"")):
        for uri in ("s3://box/a//b", "s3://box/../b", "s3://box/", "s3://box"):
            with pytest.raises(ConfigError):
                verb(uri)
    assert http_files.requests == []


class _Bucket:
    """A bucket by the book, whose next calls can be made to fail. Lists as it is told."""

    uri = "s3://box"

    def __init__(self, keys=(), *, sorts_keys=True, page_entries=3) -> None:
        self.sorts_keys = sorts_keys
        self.objects = dict.fromkeys(keys, b"x")
        self.markers: set[str] = set()
        self.page_entries = page_entries
        self.break_listing_after = itertools.repeat(10**9)
        self.lose_answer = False
        self.listed: list[tuple[str, str]] = []
        self.entries_given = 0

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
            self.entries_given += len(page)
            yield [self._entry(k) for k in page]

    def head(self, key: str) -> Entry:
        if key not in self.objects or key in self.markers:
            raise NotFoundError(f"s3://box/{key}", "no such object")
        return self._entry(key)

    def get_range(self, key: str, start: int, length: int, etag: str = "") -> Piece:
        data = self.objects[key]
        return Piece(data[start : start + length], len(data), etag)

    def create(self, key: str, data: bytes) -> None:
        if key in self.objects:
            raise AlreadyExistsError(f"s3://box/{key}", "there already")
        self.objects[key] = data
        if self.lose_answer:
            self.lose_answer = False
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


TREE_ORDER = ["in/a/x", "in/a/y", "in/a-b", "in/a.b", "in/num-1", "in/num-2", "in/num/3", "in/text", "other"]


@pytest.mark.parametrize("sorts_keys", [True, False])
@pytest.mark.parametrize("prefix", ["", "in/", "in/a", "in/num", "in/num-", "in/num/", "in/z", "o", "i"])
def test_string_prefixes_in_order_whatever_the_server_sorts_by(sorts_keys, prefix):
    store = _store(_Bucket(TREE_ORDER, sorts_keys=sorts_keys))
    assert _listed(store, prefix) == sorted(k for k in TREE_ORDER if k.startswith(prefix))


@pytest.mark.parametrize("sorts_keys", [True, False])
def test_a_listing_that_breaks_goes_on_without_loss_or_repetition(sorts_keys):
    keys = [f"in/{n:03}" for n in range(30)]
    bucket = _Bucket(keys, sorts_keys=sorts_keys)
    bucket.break_listing_after = itertools.chain([2, 0, 3], itertools.repeat(10**9))
    assert _listed(_store(bucket), "in/") == keys
    if sorts_keys:
        assert bucket.listed == [("in", ""), ("in", "in/005"), ("in", "in/005"), ("in", "in/014")]


def test_a_sorted_listing_begins_near_its_prefix_and_ends_with_it():
    bucket = _Bucket([f"in/{letter}{n}" for letter in "abcdefgh" for n in range(10)])
    assert len(_listed(_store(bucket), "in/d")) == 10
    assert bucket.listed == [("in", "in/c")]
    assert bucket.entries_given <= 10 + 10 + bucket.page_entries


def test_a_sorted_listing_that_is_not_is_no_quiet_loss():
    bucket = _Bucket(TREE_ORDER, sorts_keys=False)
    bucket.sorts_keys = True
    bucket.objects = dict.fromkeys(TREE_ORDER, b"x")
    pages = [[bucket._entry(k) for k in TREE_ORDER]]
    bucket.list = lambda folder, after="": iter(pages)
    with pytest.raises(StorageError, match="out of order at 'in/a-b'"):
        _listed(_store(bucket), "in/")


@pytest.mark.parametrize("sorts_keys", [True, False])
def test_folder_markers_are_left_out_and_empty_objects_kept(sorts_keys):
    bucket = _Bucket(["in/empty", "in/folder", "in/folder/k"], sorts_keys=sorts_keys)
    bucket.objects |= {"in/empty": b"", "in/folder": b""}
    bucket.markers = {"in/folder"}
    assert _listed(_store(bucket), "in/") == ["in/empty", "in/folder/k"]


def test_a_folder_marker_may_come_where_its_slash_puts_it():
    bucket = _Bucket()
    bucket.objects = {"in/a": b"x", "in/a-b": b"x", "in/empty": b""}
    bucket.markers = {"in/a", "in/b"}
    listed = ["in/a", "in/a-b", "in/a/", "in/a/x", "in/b/", "in/b/x", "in/empty"]
    entries = [Entry(k.rstrip("/"), 0 if k[-1] in "/y" else 1, "", 0.0) for k in listed]
    bucket.list = lambda folder, after="": iter([entries])
    assert _listed(_store(bucket), "in/") == ["in/a", "in/a-b", "in/a/x", "in/b/x", "in/empty"]


class _Uploads:
    """A bucket that knows no upload when it is to be completed; `stands` is the object that is there then."""

    uri = "s3://box"

    def __init__(self, stands: bytes | None, parts_taken: int | None = None) -> None:
        self.stands = stands
        self.parts_taken = parts_taken

    def put_parts(self, key: str, parts, *, part_bytes: int, parts_at_once: int) -> None:
        b"".join(itertools.islice(parts, self.parts_taken))
        raise NotFoundError(f"s3://box/{key}", "no such object")

    def get_range(self, key: str, start: int, length: int, etag: str = "") -> Piece:
        if self.stands is None:
            raise NotFoundError(f"s3://box/{key}", "no such object")
        return Piece(self.stands[start : start + length], len(self.stands), etag)


@pytest.mark.parametrize("stands", ["ours", "another as long", "nothing", "our beginning"])
def test_an_upload_is_complete_when_only_its_answer_was_lost(monkeypatch, stands):
    monkeypatch.setattr("headrace.storage.objects.PART_BYTES", 100_000)
    objects = {"ours": DATA, "another as long": DATA[::-1], "nothing": None, "our beginning": DATA[:100_000]}
    bucket = _Uploads(objects[stands], parts_taken=1 if stands == "our beginning" else None)
    writer = _store(bucket).writer(URI)
    # The upload may end as soon as it has begun, and then it is `write` that hears of it.
    with (
        contextlib.nullcontext() if stands == "ours" else pytest.raises(StorageError, match="no longer knows")
    ):
        writer.write(DATA)
        writer.close()


def test_a_claim_whose_answer_was_lost_is_ours():
    bucket = _Bucket()
    bucket.lose_answer = True
    _store(bucket).put_if_absent("s3://box/claim", b"mine")
    assert bucket.objects == {"claim": b"mine"}


def test_a_claim_of_somebody_else_is_not():
    bucket = _Bucket()
    bucket.objects["claim"] = b"mine too"
    with pytest.raises(AlreadyExistsError, match="s3://box/claim"):
        _store(bucket).put_if_absent("s3://box/claim", b"mine")


def test_a_claim_that_vanishes_while_we_look_is_tried_again():
    bucket = _Bucket()
    answers = iter([AlreadyExistsError("u", "conflict with a write that has not ended")])

    def create(key: str, data: bytes) -> None:
        if error := next(answers, None):
            raise error
        bucket.objects[key] = data

    bucket.create = create
    bucket.get_range = lambda *_: (_ for _ in ()).throw(NotFoundError("u", "gone"))
    _store(bucket).put_if_absent("s3://box/claim", b"mine")
    assert bucket.objects == {"claim": b"mine"}


def test_a_claim_must_fit_into_one_request(monkeypatch):
    monkeypatch.setattr("headrace.storage.objects.ONE_REQUEST_BYTES_MAX", 10)
    with pytest.raises(StorageError, match="at most 10 bytes"):
        _store(_Bucket()).put_if_absent("s3://box/claim", bytes(11))
