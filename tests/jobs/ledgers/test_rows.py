import string
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import DataError
from headrace.jobs.job import Job, JobFailure, JobProgress, NewJob, ResultRef
from headrace.jobs.ledgers.database import JOB_COLUMNS, SPEC_COLUMNS
from headrace.jobs.ledgers.rows import clean, dump, dump_result, dump_spec, job_of
from headrace.jobs.state import Cause, JobState

texts = st.text(alphabet=string.printable, max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(texts, json_values, max_size=3)
specs = st.builds(
    NewJob,
    model=texts,
    kind=st.sampled_from(("infer", "transform", "stream")),
    queue=texts,
    id=st.just("id"),
    input_uri=texts,
    content_type=texts,
    accept=texts,
    output_uri=texts,
    key=texts,
    options=objects,
    priority=st.integers(0, 9),
    delay_ms=st.integers(0, 10**9),
    attempts_max=st.integers(1, 99),
    time_limit_s=st.none() | st.floats(0, 1e6),
    time_to_live_s=st.none() | st.floats(0, 1e6),
    deadline_s=st.none() | st.floats(0, 1e6),
    idempotency_key=texts,
    body_digest=texts,
    correlation_id=texts,
    trace=texts,
    tags=st.dictionaries(texts, texts, max_size=3),
    notify=st.lists(objects, max_size=2).map(tuple),
    tenant=texts,
    owned_input=st.booleans(),
)
times = st.none() | st.integers(0, 2**48)
jobs = st.builds(
    Job,
    id=st.just("id"),
    state=st.sampled_from(JobState),
    spec=specs,
    attempt=st.integers(0, 9),
    lease=st.integers(0, 2**40),
    crashes=st.integers(0, 9),
    worker=texts,
    created_at_ms=st.integers(0, 2**48),
    due_at_ms=st.integers(0, 2**48),
    started_at_ms=times,
    ended_at_ms=times,
    expires_at_ms=times,
    deadline_at_ms=times,
    lease_until_ms=times,
    cancel_requested=st.booleans(),
    progress=st.none()
    | st.builds(JobProgress, st.integers(0, 9), st.none() | st.integers(0, 9), texts, texts),
    cursor=st.none() | objects,
    result=st.none() | st.builds(ResultRef, texts, st.none() | st.integers(0, 9), texts, texts),
    failure=st.none() | st.builds(JobFailure, st.sampled_from(Cause), texts, texts, texts),
)


def row_of(job: Job) -> list:
    """Return the row as the statements write it."""
    values = {name: getattr(job.spec, name) for name in SPEC_COLUMNS} | {
        "idempotency_key": job.spec.idempotency_key or None,
        "spec": dump_spec(job.spec),
        "state": job.state.value,
        "progress": dump(job.progress),
        "cursor": dump(job.cursor),
        "result": dump_result(job.result),
        "published_uri": job.result.published_uri if job.result else "",
        "failure": dump(job.failure),
    }
    return [values[name] if name in values else getattr(job, name) for name in JOB_COLUMNS]


@given(jobs)
def test_job_survives_a_round_trip(job):
    assert job_of(row_of(job)) == job


def test_every_field_of_a_job_is_stored():
    # New fields of NewJob are stored in the column `spec`; new fields of Job need a column.
    # `warnings` belong to the reply to a submission.
    assert {f.name for f in fields(Job)} - {"warnings"} <= set(JOB_COLUMNS)


def test_fields_of_newer_programs_are_ignored():
    job = Job(
        "a", JobState.FAILED, NewJob(id="a"), failure=JobFailure(Cause.MODEL, "no"), progress=JobProgress(1)
    )
    row = row_of(job)
    for name in ("spec", "progress", "failure"):
        column = JOB_COLUMNS.index(name)
        row[column] = row[column].replace("{", '{"newer":[1],', 1).replace(",}", "}")
    assert job_of(row) == job


def test_defaults_are_not_stored():
    assert dump_spec(NewJob(model="m", queue="q")) == "{}"


@given(st.text())
def test_clean_texts_suit_every_database(text):
    assert "\0" not in clean(text)
    assert clean(clean(text)) == clean(text)


def test_lone_surrogates_are_replaced_everywhere():
    spec = NewJob(options={"a": ["\ud800", {"\udfff": 1}]}, tags={"t": "\ud800"})
    loaded = job_of(row_of(Job("a", JobState.PENDING, replace(spec, id="a"))))
    assert loaded.spec.options == {"a": ["?", {"?": 1}]}
    assert dump(JobFailure(Cause.MODEL, "a\ud800")) is not None


def test_values_outside_of_json_are_refused():
    with pytest.raises(DataError, match="JSON"):
        dump({"a": object()})
