"""Every store through the conformance suite: in memory, on disk, and on a real S3 server."""

import itertools
from collections.abc import Callable

import pytest

from cases import for_each
from conformance.check_tables import run_each
from headrace.storage import Stores
from headrace.testing import STORE_CHECKS, check_reading, check_store
from headrace.testing.storage import StoreCheck

_numbers = itertools.count()


@pytest.fixture(scope="session")
def s3_bucket(s3_server) -> str:
    return s3_server.bucket()


def test_memory():
    def run(check: StoreCheck) -> None:
        with Stores({}) as stores:
            check(stores.for_uri("memory://"), "memory://box/in/")

    run_each(STORE_CHECKS, run)


@pytest.mark.parametrize("spelling", ["absolute", "relative", "file://"])
def test_local(spelling: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = {"absolute": f"{tmp_path}/", "relative": "", "file://": f"file://{tmp_path}/"}[spelling]

    def run(check: StoreCheck) -> None:
        prefix = f"{root}{check.__name__}/in/"
        with Stores({}) as stores:
            check(stores.for_uri(prefix), prefix)

    run_each(STORE_CHECKS, run)


@pytest.mark.s3
def test_s3(s3_server, s3_bucket: str):
    def run(check: StoreCheck) -> None:
        with Stores(s3_server.environ) as stores:
            prefix = f"s3://{s3_bucket}/check-{next(_numbers)}/"
            check(stores.for_uri(prefix), prefix)

    run_each(STORE_CHECKS, run)


@for_each(("ranges", "etags", "lengths"), list(itertools.product([True, False], repeat=3)))
def test_http_reads(http_files, ranges: bool, etags: bool, lengths: bool):
    data = bytes(range(256)) * 12_000
    http_files.objects["/a b/ünï.csv"] = data
    http_files.ranges, http_files.etags, http_files.lengths = ranges, etags, lengths
    with Stores({}) as stores:
        uri = f"{http_files.url}/a%20b/%C3%BCn%C3%AF.csv"
        check_reading(stores.for_uri(uri), uri, data)


@for_each("ranges", [True, False])
def test_s3_reads_from_a_server_that_may_ignore_ranges(http_files, ranges: bool):
    data = bytes(range(256)) * 12_000
    http_files.objects["/box/in/a b.csv"] = data
    http_files.ranges = ranges
    with Stores(http_files.s3_environ) as stores:
        uri = "s3://box/in/a b.csv"
        check_reading(stores.for_uri(uri), uri, data)


def test_check_store_runs_every_check_on_its_own_prefix():
    prefixes: list[str] = []
    with Stores({}) as stores:

        def make():
            prefixes.append(f"memory://box/{len(prefixes)}/")
            return stores.for_uri("memory://"), prefixes[-1]

        check_store(make)
    assert len(set(prefixes)) == len(STORE_CHECKS)


def _breaking(method: str, broken: Callable[..., object]):
    stores = Stores({})
    store = stores.for_uri("memory://")
    original = getattr(store, method)
    setattr(store, method, lambda *args, **named: broken(original, *args, **named))
    return store


@for_each(
    ("method", "broken"),
    [
        ("get", lambda get, uri: get(uri)[:-1]),
        ("get_range", lambda get, uri, start, length, etag="": get(uri, start, length)),
        ("put_if_absent", lambda put, uri, data: None),
        ("list", lambda listing, prefix: reversed(list(listing(prefix)))),
        ("delete", lambda delete, uri: None),
        ("stream", lambda stream, uri, start=0, etag="": stream(uri, start=max(0, start - 1), etag=etag)),
    ],
)
def test_suite_detects_a_store_that_breaks_a_guarantee(method: str, broken: Callable[..., object]):
    store = _breaking(method, broken)
    numbers = itertools.count()
    with pytest.raises(AssertionError):
        check_store(lambda: (store, f"memory://box/{next(numbers)}/"))
