"""The HTTP store over a server with scripted faults."""

import time
from email.utils import formatdate

import pytest

from cases import for_each
from headrace.core.errors import (
    AccessDeniedError,
    ChangedError,
    ConfigError,
    NotFoundError,
    StorageError,
    UnavailableError,
)
from headrace.storage import Stores
from headrace.testing import ManualClock
from servers.http_files import Fault

DATA = bytes(range(256)) * 20_000


@pytest.fixture
def clock():
    return ManualClock(auto=True)


@pytest.fixture
def store(http_files, clock):
    http_files.objects["/k"] = DATA
    return Stores({}, clock=clock, timeout_s=0.3, seed=1).for_uri(http_files.url)


@pytest.fixture
def uri(http_files):
    return f"{http_files.url}/k"


@for_each("ranges", [True, False])
@for_each("etags", [True, False])
def test_interrupted_body_is_read_completely(http_files, store, uri, ranges, etags):
    http_files.ranges, http_files.etags = ranges, etags
    http_files.faults = [Fault(cut_at=n) for n in (700_000, 1, 2_100_000, 0)]
    assert b"".join(store.stream(uri, start=10)) == DATA[10:]


def test_resume_requests_only_missing_bytes(http_files, store, uri):
    http_files.faults = [Fault(cut_at=1_000_000)]
    assert b"".join(store.stream(uri)) == DATA
    first, second = http_files.ranges_asked()
    assert first == ""
    assert 0 < int(second.removeprefix("bytes=").removesuffix("-")) <= 1_000_000


@pytest.mark.parametrize("ranges", [True, False])
def test_object_changed_before_resume_raises_changed(http_files, store, uri, ranges):
    http_files.ranges = ranges
    http_files.faults = [Fault(cut_at=1_000_000)]
    stream = store.stream(uri)
    next(stream)
    http_files.objects["/k"] = DATA[::-1]
    with pytest.raises(ChangedError):
        list(stream)


@pytest.mark.parametrize("ranges", [True, False])
def test_shrunken_object_raises_changed_without_etag(http_files, store, uri, ranges):
    http_files.ranges, http_files.etags = ranges, False
    http_files.faults = [Fault(cut_at=1_000_000)]
    stream = store.stream(uri)
    next(stream)
    http_files.objects["/k"] = DATA[:100]
    with pytest.raises(ChangedError, match="now has 100"):
        list(stream)


def test_short_range_response_is_completed(http_files, store, uri, clock):
    def capped(start: int, stop: int) -> Fault:
        headers = {"Content-Range": f"bytes {start}-{stop - 1}/{len(DATA)}"}
        return Fault(status=206, headers=headers, body=DATA[start:stop])

    http_files.faults = [capped(10, 1000), capped(1000, 50_000)]
    assert b"".join(store.stream(uri, start=10)) == DATA[10:]
    http_files.faults = [capped(10, 20)]
    assert store.get_range(uri, 10, 30) == DATA[10:40]


def test_head_falls_back_to_get(http_files, store, uri, clock):
    http_files.faults = [Fault(status=501)]
    assert store.head(uri).size_bytes == len(DATA)
    assert clock.slept_s == ()


@for_each("status", [202, 204])
def test_status_202_and_204_raise_storage_error(http_files, store, uri, status):
    http_files.faults = [Fault(status=status)]
    with pytest.raises(StorageError, match=f"HTTP {status}, without the object"):
        store.get(uri)


@for_each("location", ["http://[bad", "http://a..b/", f"http://{'h' * 70}/"])
def test_redirect_to_invalid_host_raises_storage_error(http_files, store, uri, clock, location):
    http_files.faults = [Fault(status=302, headers={"Location": location})]
    with pytest.raises(StorageError, match="is invalid"):
        store.get(uri)
    assert clock.slept_s == ()


def test_transient_failures_are_retried_and_retry_after_is_observed(http_files, store, uri, clock):
    http_files.faults = [Fault(status=s) for s in (500, 502, 503, 504, 408)] + [
        Fault(status=429, headers={"Retry-After": "17"}),
        Fault(cut_at=0),
        Fault(hang=True),
    ]
    assert store.get_range(uri, 5, 5) == DATA[5:10]
    assert len(clock.slept_s) == 8
    assert 17 in clock.slept_s


def test_retry_after_may_be_a_date(http_files, store, uri, clock):
    """A date in the past causes no extra wait and no error."""
    past = {"Retry-After": "Sat, 21 Nov 2015 08:00:30 GMT"}
    soon = {"Retry-After": formatdate(time.time() + 30, usegmt=True)}
    http_files.faults = [Fault(status=503, headers=past), Fault(status=503, headers=soon)]
    assert store.get_range(uri, 5, 5) == DATA[5:10]
    assert clock.slept_s[0] < 1
    assert 20 < clock.slept_s[1] <= 30


@for_each("status", [400, 401, 403, 404])
def test_refusals_raise_without_retry(http_files, store, uri, clock, status):
    kind = {400: StorageError, 401: AccessDeniedError, 403: AccessDeniedError, 404: NotFoundError}[status]
    http_files.faults = [Fault(status=status)] * 2
    with pytest.raises(kind, match=f"HTTP {status}"):
        store.head(uri)
    assert clock.slept_s == ()


def test_unreachable_server_raises_unavailable_after_the_budget(clock):
    store = Stores({}, clock=clock, retry_s=40).for_uri("http://127.0.0.1:9/k")
    with pytest.raises(UnavailableError, match="refused"):
        store.get("http://127.0.0.1:9/k")
    assert clock.now() == pytest.approx(40)


def test_url_is_sent_unchanged(http_files, store):
    http_files.objects["/a/b//c d"] = b"1"
    address = "/a%2fb//c%20d?X-Sig=a%2Bb%3D&x=/../y"
    assert store.get(http_files.url + address) == b"1"
    assert http_files.requests[-1][1] == address


def test_head_reports_a_size_only_with_range_support(http_files, store, uri):
    assert store.head(uri).size_bytes == len(DATA)
    http_files.heads = False
    assert store.head(uri).size_bytes == len(DATA)
    http_files.ranges = False
    assert store.head(uri).size_bytes is None


def test_redirects_are_followed_only_to_http(http_files, store):
    http_files.faults = [Fault(status=302, headers={"Location": "/k"})]
    assert store.get(f"{http_files.url}/moved") == DATA
    http_files.faults = [Fault(status=302, headers={"Location": "file:///etc/hostname"})]
    with pytest.raises(StorageError, match="302"):
        store.get(f"{http_files.url}/moved")


def test_writes_raise_config_error_and_listing_advises_a_manifest(store, uri):
    for call in (
        lambda: store.put(uri, b""),
        lambda: store.put_if_absent(uri, b""),
        lambda: store.writer(uri),
        lambda: store.delete(uri),
    ):
        with pytest.raises(ConfigError, match="only reads"):
            call()
    with pytest.raises(NotFoundError, match="manifest:"):
        store.list(uri + "/")
