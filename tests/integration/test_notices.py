"""Event notices on a real S3 server: each object is predicted once, in whatever order notices come."""

import hashlib
import json
from urllib.parse import quote_plus

import pytest

import headrace
from headrace.core.errors import DataError
from headrace.runs.objects import select_objects
from headrace.storage.resolve import Stores
from integration.hooked_model import SPEC

pytestmark = pytest.mark.s3


class WatchedBucket:
    """A bucket with a watched folder `in/` and a folder `out/`."""

    def __init__(self, server, bucket: str, folder: str) -> None:
        self.client = server.client()
        self.bucket = bucket
        self.folder = folder
        self.stores = Stores(server.environ)

    def put(self, key: str, data: bytes) -> dict:
        """Put an object. Return the event record that the server sends for it."""
        key = f"{self.folder}/{key}"
        self.client.put_object(Bucket=self.bucket, Key=key, Body=data)
        described = {"key": quote_plus(key), "size": len(data), "eTag": hashlib.md5(data).hexdigest()}
        return {
            "eventName": "s3:ObjectCreated:Put",
            "s3": {"bucket": {"name": self.bucket}, "object": described},
        }

    def open_run(self):
        return headrace.open_run(
            f"s3://{self.bucket}/{self.folder}/in/",
            output=f"s3://{self.bucket}/{self.folder}/out/",
            model=SPEC,
            resume=True,
            stores=self.stores,
        )

    def predictions(self) -> bytes:
        prefix = f"s3://{self.bucket}/{self.folder}/out/part-"
        store = self.stores.for_uri(prefix)
        found = sorted(i.uri for i in store.list(prefix) if i.uri.endswith(".csv"))
        return b"".join(store.get(uri) for uri in found)


@pytest.fixture(scope="module")
def bucket(s3_server) -> str:
    return s3_server.bucket()


@pytest.fixture
def watched(s3_server, bucket, request) -> WatchedBucket:
    return WatchedBucket(s3_server, bucket, request.node.name)


def notice(*records: dict) -> bytes:
    return json.dumps({"EventName": "s3:ObjectCreated:Put", "Records": records}).encode()


def test_repeated_notices_predict_each_object_once(watched):
    first, second = watched.put("in/day 1/a+b.csv", b"1,0\n2,0\n"), watched.put("in/c.csv", b"3,0\n")
    with watched.open_run() as run:
        report = run.append_notice(notice(first))
        assert (report.records_in, report.exit_code) == (2, 0)
        assert run.append_notice(notice(first)) is None
        # Late, repeated, and together with a new one.
        report = run.append_notice(notice(second, first, second))
        assert (report.records_in, report.objects_done) == (3, 2)
        # A listing has the same objects as the notices.
        assert run.append(select_objects(run.source, watched.stores)) is None
    assert watched.predictions() == b"2.0\n4.0\n6.0\n"


def test_restart_with_the_same_ledger_repeats_no_object(watched):
    first = watched.put("in/a.csv", b"1,0\n")
    with watched.open_run() as run:
        run.append_notice(notice(first))
    with watched.open_run() as run:
        assert run.append_notice(notice(first)) is None
        report = run.append_notice(notice(first, watched.put("in/b.csv", b"2,0\n")))
        assert (report.records_in, report.resumed) == (2, True)
    assert watched.predictions() == b"2.0\n4.0\n"


def test_changed_object_is_predicted_again(watched):
    with watched.open_run() as run:
        run.append_notice(notice(watched.put("in/a.csv", b"1,0\n")))
        assert run.append_notice(notice(watched.put("in/a.csv", b"5,0\n"))).records_in == 2
    assert watched.predictions() == b"2.0\n10.0\n"


def test_objects_outside_the_source_are_ignored(watched):
    """Notices of a whole bucket also name the run's own output, which must neither loop nor fail."""
    with watched.open_run() as run:
        assert (
            run.append_notice(
                notice(watched.put("out/x.csv", b"1,0\n"), watched.put("other/x.csv", b"1,0\n"))
            )
            is None
        )
        assert run.append_notice(notice(watched.put("in/a.csv", b"1,0\n"))).records_in == 1


def test_missing_object_is_reported_and_the_next_is_predicted(watched):
    missing = watched.put("in/a.csv", b"1,0\n")
    watched.client.delete_object(Bucket=watched.bucket, Key=f"{watched.folder}/in/a.csv")
    with watched.open_run() as run:
        report = run.append_notice(notice(missing))
        assert (report.records_in, report.objects_broken, report.exit_code) == (0, 1, 1)
        assert run.append_notice(notice(watched.put("in/b.csv", b"2,0\n"))).records_in == 1
    assert watched.predictions() == b"4.0\n"


def test_invalid_notice_changes_nothing(watched):
    with watched.open_run() as run:
        with pytest.raises(DataError, match="not an event notice"):
            run.append_notice(b"hello")
        assert run.append_notice(notice(watched.put("in/a.csv", b"1,0\n"))).records_in == 1
