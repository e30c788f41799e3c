"""What is over and past its time is removed, and nothing that is not ours."""

import itertools
import os
import time
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from headrace.core.errors import ConfigError, StorageError
from headrace.jobs.job import is_job_id, new_job_id
from headrace.jobs.maintenance.sweeper import Retention, Sweeper
from headrace.jobs.state import JobState
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


def sweeper(bench, **given) -> Sweeper:
    return Sweeper(bench.ledger, bench.stores, bench.places, Retention(**given))


def test_an_ended_job_goes_with_its_objects_when_its_time_is_over_and_not_before(bench):
    job = bench.end(bench.submit())
    bench.put(bench.places.attempt(job.id, 7) + "parts/a.out")
    bench.later(30 * DAY_S - 1)
    assert sweeper(bench).tick() == 0
    assert len(bench.stands) == 2
    bench.later(2)
    assert sweeper(bench).tick() == 1
    assert bench.stands == set()
    assert bench.ledger.get_many([job.id]) == {}


def test_payloads_go_where_they_are_ours_alone(bench):
    job_id = new_job_id(bench.wall.now_ms())
    ours = bench.put(bench.places.input(job_id))
    theirs = bench.put(f"{bench.base}theirs.csv")
    bench.end(bench.submit(id=job_id, input_uri=ours, owned_input=True))
    bench.end(bench.submit(input_uri=theirs))
    # Said to be ours, but named as somebody else's: kept.
    bench.end(bench.submit(input_uri=theirs, owned_input=True))
    bench.later(31 * DAY_S)
    assert sweeper(bench).tick() == 3
    assert bench.stands == {"theirs.csv"}


def test_a_job_that_is_put_back_at_that_moment_keeps_its_payload(bench):
    """Regression: objects went first, and the job that was put back had lost its input."""
    job_id = new_job_id(bench.wall.now_ms())
    ours = bench.put(bench.places.input(job_id))
    job = bench.end(bench.submit(id=job_id, input_uri=ours, owned_input=True))
    bench.later(31 * DAY_S)
    ended_before = bench.ledger.ended_before

    def meanwhile(*given, **named):
        found = ended_before(*given, **named)
        bench.ledger.requeue(job.id)
        return found

    bench.ledger.ended_before = meanwhile
    assert sweeper(bench).tick() == 0
    assert ours.removeprefix(bench.base) in bench.stands
    assert bench.ledger.get(job.id).state is JobState.PENDING


def test_orphans_go_after_their_time_and_what_jobs_have_stays(bench):
    known = bench.end(bench.submit())
    running = bench.submit(queue="other")
    stranger = new_job_id(bench.wall.now_ms())
    kept = {
        bench.put(bench.places.attempt(running.id, 1) + "result.out"),
        bench.put(bench.places.input(known.id)),
    }
    kept.add(known.result.uri)
    orphans = {
        bench.put(bench.places.input(stranger)),
        bench.put(bench.places.attempt(stranger, 1) + "a/b.out"),
    }
    superseded = bench.put(bench.places.attempt(known.id, 9) + "result.out")
    assert sweeper(bench).orphans() == 0, "they are young: their submission may be on its way"
    bench.later(DAY_S + 60)
    assert sweeper(bench).orphans() == len(orphans) + 1
    assert bench.stands == {uri.removeprefix(bench.base) for uri in kept}
    assert superseded.removeprefix(bench.base) not in bench.stands


def test_what_a_failed_jobs_attempts_wrote_counts_for_nothing(bench):
    job = bench.end(bench.submit(), fail=True)
    bench.later(DAY_S + 60)
    assert sweeper(bench).orphans() == 1
    assert bench.stands == set()
    assert bench.ledger.get(job.id).state is JobState.FAILED


def test_objects_that_cannot_be_removed_are_orphans_then(bench, monkeypatch):
    job = bench.end(bench.submit())
    bench.later(31 * DAY_S)
    store = bench.stores.for_uri(bench.base)
    with monkeypatch.context() as patch:

        def refuse(uri):
            raise StorageError(uri, "not now")

        patch.setattr(store, "delete", refuse)
        assert sweeper(bench).tick() == 1
    assert len(bench.stands) == 1
    assert is_job_id(job.id)
    assert sweeper(bench).orphans() == 1
    assert bench.stands == set()


def test_what_has_no_date_is_not_taken_for_old(bench, monkeypatch):
    bench.put(bench.places.input(new_job_id(0)))
    store = bench.stores.for_uri(bench.base)
    listed = store.list
    monkeypatch.setattr(store, "list", lambda prefix: (replace(i, modified_s=0.0) for i in listed(prefix)))
    bench.later(99 * DAY_S)
    assert sweeper(bench).orphans() == 0


def test_on_a_disk_nothing_is_left_of_a_job_not_even_its_folders(tmp_path):
    """Regression: two empty folders a job stayed for ever, and drafts of killed writers."""
    with Stores({}) as stores:
        bench = Bench(stores, f"{tmp_path}/", round(time.time() * 1000))
        bench.end(bench.submit())
        stranger = bench.places.attempt(new_job_id(0), 1) + "a/b.out"
        bench.put(stranger)
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
def test_nothing_is_removed_that_is_not_named_as_ours(folder, name):
    with Stores({}) as stores:
        bench = Bench(stores, "memory://box/", round(time.time() * 1000))
        try:
            uri = bench.put(f"{bench.places.store_uri}{folder}{name}")
        except ConfigError:  # no store of ours has such a name
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


@pytest.mark.parametrize("given", [{"jobs_s": 0.0}, {"jobs_s": -1.0}, {"orphans_s": 3599.0}])
def test_a_retention_that_would_remove_things_under_somebodys_hands_is_refused(given):
    with pytest.raises(ConfigError):
        Retention(**given)
