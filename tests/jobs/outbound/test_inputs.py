"""Inputs at HTTP addresses: the reading contract, limits, and refused addresses."""

import pytest

from headrace.core.clock import RetryPolicy
from headrace.core.errors import (
    ChangedError,
    ConfigError,
    LimitError,
    RefusedAddressError,
    StorageError,
    UnavailableError,
)
from headrace.jobs.outbound import OutboundPolicy, OutboundTimeouts, parse_network
from headrace.jobs.outbound.client import InputStore, OutboundClient
from headrace.storage.retry import Retrier
from headrace.testing import ManualClock, check_reading
from servers.http_files import CUT_NOW, Fault

DATA = bytes(range(256)) * 10_000


@pytest.fixture
def clock():
    return ManualClock(auto=True)


@pytest.fixture
def client(http_files):
    port = int(http_files.url.rpartition(":")[2])
    policy = OutboundPolicy(True, frozenset({port}), (parse_network("127.0.0.1"),))
    with OutboundClient(policy, timeouts=OutboundTimeouts(1, 1, 2)) as client:
        yield client


@pytest.fixture
def store(http_files, client, clock):
    http_files.objects["/k"] = DATA
    return InputStore(client, Retrier(clock, RetryPolicy(retry_s=5), seed=1), bytes_max=len(DATA), read_s=0.5)


@pytest.fixture
def uri(http_files):
    return f"{http_files.url}/k"


@pytest.mark.parametrize("lacking", ["nothing", "ranges", "heads", "etags"])
def test_input_store_meets_the_reading_contract(http_files, client, clock, lacking):
    http_files.objects["/k"] = DATA
    if lacking != "nothing":
        setattr(http_files, lacking, False)
    store = InputStore(client, Retrier(clock, RetryPolicy()), bytes_max=10 * len(DATA))
    check_reading(store, f"{http_files.url}/k", DATA)


def test_broken_body_resumes_at_its_byte(http_files, store, uri):
    http_files.faults = [Fault(cut_at=1_000_000), CUT_NOW, Fault(status=503)]
    assert b"".join(store.stream(uri)) == DATA
    ranges = http_files.ranges_asked()
    assert ranges[0] == ""
    assert {a.startswith("bytes=") for a in ranges[1:]} == {True}


def test_changed_object_is_detected_by_its_etag(http_files, store, uri):
    etag = store.head(uri).etag
    assert b"".join(store.stream(uri, etag=etag)) == DATA
    assert http_files.requests[-1][2]["if-match"] == etag
    stream = store.stream(uri, etag=etag)
    next(stream)
    http_files.objects["/k"] = DATA[::-1]
    http_files.faults = [CUT_NOW]
    with pytest.raises(ChangedError):
        b"".join(store.stream(uri, etag=etag))


@pytest.mark.parametrize("lengths", [True, False])
def test_too_large_object_is_refused_early(http_files, store, uri, lengths):
    http_files.objects["/k"] = DATA + b"x"
    http_files.lengths = lengths
    with pytest.raises(LimitError, match=str(len(DATA))):
        b"".join(store.stream(uri))
    with pytest.raises(LimitError):
        store.get(uri)
    with pytest.raises(LimitError):
        store.get_range(uri, len(DATA), 1)
    if lengths:
        with pytest.raises(LimitError):
            store.head(uri)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(http_files, store, uri, status):
    http_files.faults = [Fault(status=status, headers={"Location": f"{http_files.url}/inner"})]
    http_files.objects["/inner"] = b"secret"
    with pytest.raises(StorageError, match=f"HTTP {status}"):
        b"".join(store.stream(uri))
    assert {path for _, path, _ in http_files.requests} == {"/k"}


def test_forbidden_address_is_refused(http_files, clock, uri):
    with OutboundClient() as client:
        store = InputStore(client, Retrier(clock, RetryPolicy()), bytes_max=10)
        for bad in (
            uri,
            uri.replace("http:", "https:"),
            "https://169.254.169.254/latest",
            "file:///etc/passwd",
        ):
            for act in (store.head, store.get, lambda u: b"".join(store.stream(u))):
                with pytest.raises(RefusedAddressError):
                    act(bad)
    assert http_files.requests == []


def test_server_phrase_is_not_shown(http_files, store, uri):
    http_files.faults = [Fault(status=418, body=b"the inner secret")] * 2
    with pytest.raises(StorageError) as error:
        store.get(uri)
    assert "inner secret" not in str(error.value)


def test_hanging_server_is_given_up_after_retries(http_files, store, uri):
    http_files.faults = [Fault(hang=True)] + [CUT_NOW] * 100
    with pytest.raises(UnavailableError):
        store.get(uri)


def test_stream_ends_at_its_time_limit(http_files, client, uri, clock):
    http_files.objects["/k"] = DATA
    store = InputStore(client, Retrier(clock, RetryPolicy()), bytes_max=len(DATA), stream_s=10)
    stream = store.stream(uri)
    next(stream)
    clock.advance(11)
    with pytest.raises(UnavailableError, match="not read within 10 s"):
        next(stream)


def test_input_store_is_read_only(store, uri):
    for act in (lambda: store.put(uri, b""), lambda: store.writer(uri), lambda: store.delete(uri)):
        with pytest.raises(ConfigError):
            act()
