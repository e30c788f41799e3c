"""Jobs as JSON documents: round trips, and tags that change with every visible change."""

from dataclasses import fields, replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.jobs.history import HistoryEntry, HistoryEvent, history_document, read_history
from headrace.jobs.job import (
    Job,
    JobFailure,
    JobProgress,
    NewJob,
    ResultRef,
    change_tag,
    job_document,
    read_job,
    same_state,
)
from headrace.jobs.ledger import QueueCounts, QueueSettings
from headrace.jobs.service import queue_document
from headrace.jobs.state import Cause, JobState

OMITTED = {"delay_ms", "idempotency_key", "body_digest", "trace", "notify", "owned_input"}
times = st.none() | st.integers(0, 2**42)
jobs = st.builds(
    Job,
    id=st.uuids().map(str),
    state=st.sampled_from(JobState),
    spec=st.builds(
        NewJob,
        model=st.text(max_size=5),
        region=st.sampled_from(("", "eu")),
        tags=st.dictionaries(st.text(max_size=3), st.text(max_size=3)),
    ),
    attempt=st.integers(0, 5),
    lease=st.integers(0, 5),
    worker_region=st.sampled_from(("", "us")),
    started_at_ms=times,
    ended_at_ms=times,
    cancel_requested=st.booleans(),
    progress=st.none() | st.builds(JobProgress, done=st.integers(0, 9), total=st.none() | st.integers(0, 9)),
    result=st.none()
    | st.builds(ResultRef, uri=st.text(max_size=5), size_bytes=st.none() | st.integers(0, 9)),
    failure=st.none() | st.builds(JobFailure, cause=st.sampled_from(Cause), message=st.text(max_size=5)),
)


@given(jobs)
def test_job_document_survives_a_round_trip(job):
    read = read_job(orjson.loads(orjson.dumps(job_document(job))))
    assert replace(read, spec=job.spec, lease_until_ms=None, cursor=None) == job
    for field in fields(NewJob):
        if field.name not in OMITTED | {"id"}:
            assert getattr(read.spec, field.name) == getattr(job.spec, field.name)


def test_document_of_an_older_api_has_no_regions():
    job = Job(
        "j",
        JobState.RUNNING,
        NewJob(region="eu"),
        worker_region="us",
        progress=JobProgress(1, 2, "bytes", "", 3),
    )
    document = job_document(job)
    del document["region"], document["worker_region"], document["progress"]["bytes_across_regions"]
    read = read_job(document)
    assert (read.spec.region, read.worker_region, read.progress.bytes_across_regions) == ("", "", 0)


def test_notification_secrets_are_left_out():
    job = Job("j", JobState.PENDING, NewJob(notify=({"secret": "whsec_x"},), idempotency_key="mine"))
    assert "whsec_x" not in str(job_document(job))
    assert "mine" not in str(job_document(job))


@for_each("document", [{}, {"id": 1}, {**job_document(Job("j", JobState.PENDING, NewJob())), "state": "x"}])
def test_invalid_job_document_is_an_error(document):
    with pytest.raises((KeyError, ValueError)):
        read_job(document)


def test_change_tag_differs_after_a_change():
    job = Job("j", JobState.RUNNING, NewJob(), attempt=1, lease=1)
    assert change_tag(job) == change_tag(replace(job, worker="other", lease_until_ms=5))
    progress = replace(job, progress=JobProgress(1))
    assert change_tag(progress) != change_tag(job)
    assert same_state(change_tag(progress), change_tag(job))
    for changed in (
        replace(job, lease=2),
        replace(job, cancel_requested=True),
        replace(job, state=JobState.FAILED),
        replace(job, due_at_ms=5),
        replace(job, failure=JobFailure(Cause.MODEL, "x")),
    ):
        assert not same_state(change_tag(changed), change_tag(job))


def test_change_tag_fits_a_header():
    assert all(33 <= ord(c) < 127 for c in change_tag(Job("j", JobState.PENDING, NewJob(model="ä\n"))))


def test_history_and_queue_documents():
    entry = HistoryEntry(5, HistoryEvent.LEASE_LOST, 1, 2, "w", "crash", "m", "by")
    assert read_history(history_document(entry)) == entry
    assert read_history(history_document(entry) | {"member_of_a_newer_server": 1}) == entry
    document = queue_document(QueueSettings("q", pending_max=3), QueueCounts(2, 1, 4, 1500, {"eu": 1}, 5))
    assert document == {
        "queue": "q",
        "paused": False,
        "draining": False,
        "pending_max": 3,
        "queued": 2,
        "later": 1,
        "blocked": 5,
        "running": 4,
        "oldest_seconds": 1.5,
        "queued_by_region": {"eu": 1},
    }
