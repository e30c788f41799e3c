"""Event notices to predictions, on the real S3 server: every object once, however often and whenever it is named."""

import hashlib
import json
from urllib.parse import quote_plus

import pytest

import headrace
from headrace.core.errors import DataError
from headrace.pipeline.plan import select_objects
from headrace.storage.resolve import Stores
from integration.hooked_model import SPEC

pytestmark = pytest.mark.s3


class Place:
    """A bucket with an `in/` that is watched by notices and an `out/` beside it."""

    def __init__(self, server, bucket: str, folder: str) -> None:
        self.client = server.client()
        self.bucket = bucket
        self.folder = folder
        self.stores = Stores(server.environ)

    def put(self, key: str, data: bytes) -> dict:
        """Put an object; the record that the server posts for it."""
        key = f"{self.folder}/{key}"
        self.client.put_object(Bucket=self.bucket, Key=key, Body=data)
        described = {"key": quote_plus(key), "size": len(data), "eTag": hashlib.md5(data).hexdigest()}
        return {
            "eventName": "s3:ObjectCreated:Put",
            "s3": {"bucket": {"name": self.bucket}, "object": described},
        }

    def open_run(self, if_exists="resume"):
        return headrace.open_run(
            f"s3://{self.bucket}/{self.folder}/in/",
            output=f"s3://{self.bucket}/{self.folder}/out/",
            model=SPEC,
            if_exists=if_exists,
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
def place(s3_server, bucket, request) -> Place:
    return Place(s3_server, bucket, request.node.name)


def notice(*records: dict) -> bytes:
    return json.dumps({"EventName": "s3:ObjectCreated:Put", "Records": records}).encode()


def test_a_notice_scores_what_it_names_once_however_often_it_arrives(place):
    first, second = place.put("in/day 1/a+b.csv", b"1,0\n2,0\n"), place.put("in/c.csv", b"3,0\n")
    with place.open_run() as run:
        report = run.append_notice(notice(first))
        assert (report.records_in, report.exit_code) == (2, 0)
        assert run.append_notice(notice(first)) is None
        # Late, doubled, and beside a new one.
        report = run.append_notice(notice(second, first, second))
        assert (report.records_in, report.objects_read) == (3, 2)
        # A listing names the same objects as the notices did.
        assert run.append(select_objects(run.source, place.stores)) is None
    assert place.predictions() == b"2.0\n4.0\n6.0\n"


def test_a_restart_with_the_same_ledger_knows_what_was_scored(place):
    first = place.put("in/a.csv", b"1,0\n")
    with place.open_run() as run:
        run.append_notice(notice(first))
    with place.open_run() as run:
        assert run.append_notice(notice(first)) is None
        report = run.append_notice(notice(first, place.put("in/b.csv", b"2,0\n")))
        assert (report.records_in, report.resumed) == (2, True)
    assert place.predictions() == b"2.0\n4.0\n"


def test_an_object_that_was_written_anew_is_scored_anew(place):
    with place.open_run() as run:
        run.append_notice(notice(place.put("in/a.csv", b"1,0\n")))
        assert run.append_notice(notice(place.put("in/a.csv", b"5,0\n"))).records_in == 2
    assert place.predictions() == b"2.0\n10.0\n"


def test_objects_outside_the_source_are_passed_over(place):
    """A whole bucket's notices also name what the run itself writes: that must neither loop nor fail."""
    with place.open_run() as run:
        assert (
            run.append_notice(notice(place.put("out/x.csv", b"1,0\n"), place.put("other/x.csv", b"1,0\n")))
            is None
        )
        assert run.append_notice(notice(place.put("in/a.csv", b"1,0\n"))).records_in == 1


def test_an_object_that_is_gone_is_reported_and_the_next_is_scored(place):
    gone = place.put("in/a.csv", b"1,0\n")
    place.client.delete_object(Bucket=place.bucket, Key=f"{place.folder}/in/a.csv")
    with place.open_run() as run:
        report = run.append_notice(notice(gone))
        assert (report.records_in, report.objects_broken, report.exit_code) == (0, 1, 1)
        assert run.append_notice(notice(place.put("in/b.csv", b"2,0\n"))).records_in == 1
    assert place.predictions() == b"4.0\n"


def test_what_is_no_notice_changes_nothing(place):
    with place.open_run() as run:
        with pytest.raises(DataError, match="no event notice"):
            run.append_notice(b"hello")
        assert run.append_notice(notice(place.put("in/a.csv", b"1,0\n"))).records_in == 1
