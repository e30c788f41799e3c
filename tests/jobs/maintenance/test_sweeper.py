"""The sweeper: jobs and objects are deleted after their retention, foreign objects stay."""

import itertools
import os
import time
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import ConfigError, StorageError
from headrace.jobs.job import JobFailure, is_job_id, new_job_id
from headrace.jobs.maintenance import Retention, Sweeper
from headrace.jobs.state import Cause, JobState
from headrace.storage.resolve import Stores
from jobs.maintenance.bench import DAY_S, Bench

_numbers = itertools.count()


@pytest.fixture(params=["disk", "memory", pytest.param("s3", marks=pytest.mark.s3)])
def bench(request, tmp_path):
    environ, base = {}, {"disk": f"{tmp_path}/", "memory": "memory://box/"}.get(request.param, "")
    if request.param == "s3":
        server = request.getfixturevalue("s3_server")
        environ, base = server.environ, f"s3://{server.bucket()}/{next(_numbers)}/"
    with Stores(environ) as stores:
        yield Bench(stores, base, round(time.time() * 1000))


def sweeper(bench, **retention) -> Sweeper:
    return Sweeper(bench.ledger, bench.stores, bench.paths, Retention(**retention))


def test_ended_job_and_its_objects_are_deleted_after_retention(bench):
    job = bench.end(bench.submit())
    bench.put(bench.paths.attempt(job.id, 7) + "parts/a.out")
    bench.later(30 * DAY_S - 1)
    assert sweeper(bench).tick() == 0
    assert len(bench.objects) == 2
    bench.later(2)
    assert sweeper(bench).tick() == 1
    assert bench.objects == set()
    assert bench.ledger.get_many([job.id]) == {}


def test_only_owned_payloads_are_deleted(bench):
    job_id = new_job_id(bench.wall.now_ms())
    owned = bench.put(bench.paths.input(job_id))
    foreign = bench.put(f"{bench.base}foreign.csv")
    bench.end(bench.submit(id=job_id, input_uri=owned, owned_input=True))
    bench.end(bench.submit(input_uri=foreign))
    # The job claims to own this object, but the name is foreign: the object stays.
    bench.end(bench.submit(input_uri=foreign, owned_input=True))
    bench.later(31 * DAY_S)
    assert sweeper(bench).tick() == 3
    assert bench.objects == {"foreign.csv"}


def test_concurrently_requeued_job_keeps_its_payload(bench):
    """Regression: objects were deleted first, so a requeued job had lost its input."""
    job_id = new_job_id(bench.wall.now_ms())
    owned = bench.put(bench.paths.input(job_id))
    job = bench.end(bench.submit(id=job_id, input_uri=owned, owned_input=True))
    bench.later(31 * DAY_S)
    ended_before = bench.ledger.ended_before

    def meanwhile(*given, **named):
        found = ended_before(*given, **named)
        bench.ledger.requeue(job.id)
        return found

    bench.ledger.ended_before = meanwhile
    assert sweeper(bench).tick() == 0
    assert owned.removeprefix(bench.base) in bench.objects
    assert bench.ledger.get(job.id).state is JobState.PENDING


def test_orphans_are_deleted_after_retention_and_other_objects_stay(bench):
    known = bench.end(bench.submit())
    running = bench.submit(queue="other")
    unknown = new_job_id(bench.wall.now_ms())
    kept = {
        bench.put(bench.paths.attempt(running.id, 1) + "result.out"),
        bench.put(bench.paths.input(known.id)),
    }
    kept.add(known.result.uri)
    orphans = {
        bench.put(bench.paths.input(unknown)),
        bench.put(bench.paths.attempt(unknown, 1) + "a/b.out"),
    }
    superseded = bench.put(bench.paths.attempt(known.id, 9) + "result.out")
    assert sweeper(bench).orphans() == 0, "the job of a young object may not be submitted yet"
    bench.later(DAY_S + 60)
    assert sweeper(bench).orphans() == len(orphans) + 1
    assert bench.objects == {uri.removeprefix(bench.base) for uri in kept}
    assert superseded.removeprefix(bench.base) not in bench.objects


def test_output_of_a_failed_job_is_deleted(bench):
    job = bench.end(bench.submit(), fail=True)
    bench.later(DAY_S + 60)
    assert sweeper(bench).orphans() == 1
    assert bench.objects == set()
    assert bench.ledger.get(job.id).state is JobState.FAILED


def test_result_that_could_not_be_published_stays(bench):
    job = bench.end(bench.submit(output_uri="memory://out/"))
    for _ in range(2):
        bench.later(DAY_S + 60)
        assert sweeper(bench).orphans() == 0
        bench.ledger.mark_publish_failed(job.id, job.lease, JobFailure(Cause.INPUT, "no"), final=True)
    assert bench.ledger.get(job.id).state is JobState.PUBLISH_FAILED


def test_undeletable_objects_become_orphans(bench, monkeypatch):
    job = bench.end(bench.submit())
    bench.later(31 * DAY_S)
    store = bench.stores.for_uri(bench.base)
    with monkeypatch.context() as patch:

        def refuse(uri):
            raise StorageError(uri, "not now")

        patch.setattr(store, "delete", refuse)
        assert sweeper(bench).tick() == 1
    assert len(bench.objects) == 1
    assert is_job_id(job.id)
    assert sweeper(bench).orphans() == 1
    assert bench.objects == set()


def test_objects_without_a_date_stay(bench, monkeypatch):
    bench.put(bench.paths.input(new_job_id(0)))
    store = bench.stores.for_uri(bench.base)
    listed = store.list
    monkeypatch.setattr(store, "list", lambda prefix: (replace(i, modified_s=0.0) for i in listed(prefix)))
    bench.later(99 * DAY_S)
    assert sweeper(bench).orphans() == 0


def test_empty_folders_are_deleted_on_a_disk(tmp_path):
    """Regression: two empty folders per job stayed forever, and so did drafts of killed writers."""
    with Stores({}) as stores:
        bench = Bench(stores, f"{tmp_path}/", round(time.time() * 1000))
        bench.end(bench.submit())
        unknown = bench.paths.attempt(new_job_id(0), 1) + "a/b.out"
        bench.put(unknown)
        draft = tmp_path / "store" / "drafts" / ".headrace-1-a.tmp"
        draft.parent.mkdir()
        draft.write_text("half")
        os.utime(draft, (0, 0))
        bench.later(31 * DAY_S)
        sweeper(bench).tick()
        sweeper(bench).orphans()
        assert bench.folders() == {"store/attempts"}
        assert not draft.exists()


JOB = new_job_id(1)
NAMES = st.one_of(
    st.text("abcX0-._~/", min_size=1, max_size=20),
    st.sampled_from([JOB, f"{JOB}x", f"{JOB}/", f"{JOB}/x", JOB.upper(), "README.txt", f"{JOB}.csv"]),
    st.tuples(st.sampled_from([JOB, "job", ".."]), st.sampled_from(["1", "01", "-1", "x", "1.5", ""])).map(
        "/".join
    ),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(folder=st.sampled_from(["inputs/", "attempts/", "results/", "inputs", "other/"]), name=NAMES)
def test_objects_with_foreign_names_stay(folder, name):
    with Stores({}) as stores:
        bench = Bench(stores, "memory://box/", round(time.time() * 1000))
        try:
            uri = bench.put(f"{bench.paths.store_uri}{folder}{name}")
        except ConfigError:  # no store permits this name
            reject()
        bench.later(99 * DAY_S)
        removed = sweeper(bench).orphans()
        parts = (folder + name).split("/")
        ours = (parts[0] == "inputs" and len(parts) == 2 and is_job_id(parts[1])) or (
            parts[0] == "attempts"
            and len(parts) > 3
            and is_job_id(parts[1])
            and parts[2].isdecimal()
            and str(int(parts[2])) == parts[2]
            and "".join(parts[3:]) != ""
        )
        assert removed == int(ours), uri


@for_each("invalid", [{"jobs_s": 0.0}, {"jobs_s": -1.0}, {"orphans_s": 3599.0}])
def test_too_short_retention_is_refused(invalid):
    with pytest.raises(ConfigError):
        Retention(**invalid)
