"""Payloads of jobs: owners of uploads, hidden store errors, and complete files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import (
    DataError,
    LimitError,
    ResourceNotFoundError,
    ResultGoneError,
    StorageError,
    UnavailableError,
)
from headrace.jobs.job import Job, NewJob, ResultRef
from headrace.jobs.payloads import Payloads, check_upload_id, new_upload_id
from headrace.jobs.state import JobState
from headrace.storage import Stores


def payloads(store_uri="memory://s", stores=None, **settings):
    return Payloads(
        stores or Stores(), store_uri, **{"upload_bytes_max": 100, "signed_urls": True} | settings
    )


@given(st.text(max_size=20), st.text(max_size=20), st.integers(0, 2**47))
def test_upload_id_is_valid_for_its_tenant_only(tenant, other, now_ms):
    upload_id = new_upload_id(tenant, now_ms)
    check_upload_id(tenant, upload_id)
    if tenant != other:
        with pytest.raises(ResourceNotFoundError):
            check_upload_id(other, upload_id)


def test_malformed_upload_id_is_refused():
    good = new_upload_id("t", 5)
    for upload_id in ("", "x", "../x", good.upper() + "Z", good[:-1], f"{good}\n"):
        with pytest.raises(ResourceNotFoundError, match="no upload"):
            check_upload_id("t", upload_id)


def test_uploads_are_complete_or_absent(tmp_path):
    made = payloads(str(tmp_path))
    upload = made.begin_upload("t", 5, 60)
    assert upload.url == ""
    with pytest.raises(DataError, match="has no payload yet"):
        made.check_upload("t", upload.id)
    writer = made.open_upload("t", upload.id)
    writer.write(b"x" * 60)
    with pytest.raises(LimitError):
        writer.write(b"x" * 60)
    writer.abort()
    with pytest.raises(DataError, match="has no payload yet"):
        made.check_upload("t", upload.id)
    with made.open_upload("t", upload.id) as writer:
        writer.write(b"x" * 100)
    assert made.check_upload("t", upload.id) == (f"{tmp_path}/inputs/{upload.id}", 100)


def test_store_errors_are_not_shown():
    stores = Stores()
    store = stores.for_uri("memory://s")

    def broken(*_, **__):
        raise StorageError("memory://s/secret", "the disk at /mnt/secret is full")

    store.put = store.writer = store.head = broken
    made = payloads(stores=stores)
    job = Job("j", JobState.COMPLETED, NewJob(), result=ResultRef("memory://s/r"))
    upload_id = new_upload_id("t", 5)
    for call in (
        lambda: made.store_payload("j", b"x"),
        lambda: made.open_upload("t", upload_id),
        lambda: made.check_upload("t", upload_id),
        lambda: made.open_result(job),
    ):
        with pytest.raises(UnavailableError) as raised:
            call()
        assert "secret" not in str(raised.value)


def test_only_internal_objects_are_deleted_with_a_job():
    stores = Stores()
    made, store = payloads(stores=stores), stores.for_uri("memory://s")
    uris = ["memory://s/inputs/j", "memory://s/attempts/j/1/r", "memory://out/k.out", "memory://in/k"]
    for uri in uris:
        store.put(uri, b"x")
    job = Job(
        "j", JobState.COMPLETED, NewJob(input_uri=uris[0], owned_input=True),
        result=ResultRef(uris[1], published_uri=uris[2]),
    )  # fmt: skip
    made.delete_job_objects(
        Job("i", JobState.COMPLETED, NewJob(input_uri=uris[3]), result=ResultRef(uris[2]))
    )
    made.delete_job_objects(job)
    assert [info.uri for info in store.list("memory://")] == [uris[3], uris[2]]
    made.delete_job_objects(job)


def test_missing_result_is_gone():
    job = Job(
        "j", JobState.COMPLETED, NewJob(), result=ResultRef("memory://s/r", published_uri="memory://out/r")
    )
    with pytest.raises(ResultGoneError):
        payloads().open_result(job)
