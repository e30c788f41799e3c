"""Job ids, and properties derived from a job's fields."""

import uuid
from dataclasses import FrozenInstanceError, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.jobs.job import CRASHES_TOGETHER_MAX, KINDS, Job, NewJob, new_job_id
from headrace.jobs.state import JobState

times = st.integers(0, (1 << 48) - 1)


@given(times)
def test_id_is_a_uuid_7_with_its_millisecond(now_ms):
    text = new_job_id(now_ms)
    value = uuid.UUID(text)
    assert str(value) == text
    assert (value.version, value.variant) == (7, uuid.RFC_4122)
    assert value.int >> 80 == now_ms


@given(times, times)
def test_ids_sort_by_their_millisecond(one_ms, other_ms):
    first, second = new_job_id(min(one_ms, other_ms)), new_job_id(max(one_ms, other_ms))
    assert one_ms == other_ms or first < second


def test_ids_of_one_millisecond_differ_in_all_free_bits():
    ids = [uuid.UUID(new_job_id(1_800_000_000_000)).int for _ in range(10_000)]
    assert len(set(ids)) == len(ids)
    ever, always = 0, -1
    for value in ids:
        ever |= value
        always &= value
    # The fixed bits of version and variant separate 12 and 62 random bits.
    free = (((1 << 12) - 1) << 64) | ((1 << 62) - 1)
    assert (ever & ~always) == free


@for_each("crashes", range(4))
def test_job_with_too_many_crashes_runs_alone(crashes):
    job = Job("id", JobState.PENDING, NewJob(), crashes=crashes)
    assert job.alone == (crashes >= CRASHES_TOGETHER_MAX)


def test_jobs_are_immutable_values():
    job = NewJob()
    assert job == NewJob()
    assert replace(job, model="m") != job
    with pytest.raises(FrozenInstanceError):
        job.model = "other"
    for value in (job.options, job.tags):
        with pytest.raises(TypeError):
            value["key"] = 1


def test_default_job_uses_known_values():
    assert NewJob().kind in KINDS
    assert all(field.default is not None or field.name.endswith("_s") for field in fields(NewJob))


@for_each(
    ("region", "worker_region", "across"),
    [("eu", "us", True), ("eu", "eu", False), ("", "us", False), ("eu", "", False), ("", "", False)],
)
def test_across_regions_needs_both_regions(region, worker_region, across):
    job = Job("j", JobState.RUNNING, NewJob(region=region), worker_region=worker_region)
    assert job.across_regions is across
