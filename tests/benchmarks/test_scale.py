"""jobs/scale_limits.py in small, and the tables of jobs/scale_model.py with their copies in docs."""

from dataclasses import replace
from pathlib import Path

import pytest
import scale_limits
import scale_model
import scale_simulation
from job_storage import POSTGRES, JobStorage
from scale_model import MEASURED, SHAPES, Day, Fleet
from scale_simulation import Case, Simulation

PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
EACH, OF_1000, SMALL_FILES, LARGE_FILES, SERVED = SHAPES


def shares(shape, **fleet):
    """Return the share of each part's limit."""
    day = Day(shape, replace(Fleet(), **fleet), MEASURED)
    return {part.name: part.load(day).share for part in scale_model.parts(MEASURED)}


def test_documentation_has_the_printed_tables():
    for table in (scale_model.loads_table(), scale_model.storage_table()):
        assert table in PAGE, "copy the output of `python benchmarks/jobs/scale_model.py` into docs/scale.md"
    table = scale_simulation.simulation_table()
    assert table in PAGE, "copy the output of `python benchmarks/jobs/scale_simulation.py` into docs/scale.md"


def test_rates_are_those_of_a_billion_a_day():
    rates = [shape.jobs_per_s(Fleet()) for shape in SHAPES]
    assert rates == pytest.approx([11_574, 11.574, 0.11574, 0.0011574, 0], rel=1e-4)
    assert [shape.objects_per_day(Fleet()) for shape in SHAPES] == [2e9, 2e6, 2e6, 2e4, 0]


def test_share_is_the_time_of_both_cores():
    day = Day(OF_1000, Fleet(), replace(MEASURED, heartbeat_us=3000))
    load = scale_model.heartbeats(day)
    assert load.per_s == pytest.approx(1000 / 15)
    assert load.share == pytest.approx(1000 / 15 * 0.003 / 2)


def test_work_of_a_fleet_does_not_depend_on_its_jobs():
    once, twice = shares(EACH), shares(EACH, predictions_per_day=2e9)
    fixed = {name for name, share in once.items() if twice[name] == share}
    assert fixed == {
        "reads of orders",
        "maintenance by workers",
        "polls of idle workers",
        "heartbeats of 8 jobs",
        "one listener, served online",
    }


def test_claims_grow_only_if_the_database_does_not_keep_up():
    assert Day(EACH, Fleet(), MEASURED).jobs_per_claim == 8
    assert Day(OF_1000, Fleet(), MEASURED).jobs_per_claim == 1


def test_submissions_share_commits_only_under_load():
    assert Day(OF_1000, Fleet(), MEASURED).submit_commits_per_s == pytest.approx(34.72, rel=1e-3)
    assert Day(EACH, Fleet(), MEASURED).submit_commits_per_s == pytest.approx(350, rel=0.01)


def test_wakeups_are_one_claim_of_each_worker_for_each_commit():
    load = scale_model.wakeups(Day(OF_1000, Fleet(workers=10), MEASURED))
    assert load.per_s == pytest.approx(347.2, rel=1e-3)


def test_only_objects_of_jobs_are_listed_every_hour():
    own, others = (scale_model.listing(Day(shape, Fleet(), MEASURED)) for shape in (OF_1000, SMALL_FILES))
    assert own.per_s == pytest.approx(2e6 * 30 * 24 / 86_400)
    assert others.per_s == pytest.approx(1e6 / 86_400)


def simulated(**case):
    """Return the outcome of a small fleet."""
    return Simulation(replace(Case("", 5, workers=10, run_s=0.1, seconds=20), **case)).run()


def test_idle_workers_all_claim_for_each_job():
    found = simulated()
    assert found.empty == pytest.approx(0.9, abs=0.02)
    assert found.claimed > 0.97
    assert found.wait_p95_s < 0.01


def test_queues_divide_the_claims_without_a_job():
    assert simulated(queues=5).empty == pytest.approx(0.5, abs=0.1)
    assert simulated(queues=5).busy < simulated().busy


def test_overloaded_database_claims_as_many_jobs_as_slots_are_free():
    found = simulated(jobs_per_s=30_000, jobs_per_commit=100, workers=200, run_s=0.01, seconds=0.5)
    assert found.busy == pytest.approx(1, abs=0.1)
    assert 4 < found.jobs_per_claim <= 8
    assert found.claimed < 0.5
    assert found.wait == "grows"


def test_simulated_work_is_that_of_its_transactions():
    """One worker claims each job, and settles it by a transaction of its own."""
    found = simulated(workers=1, jobs_per_s=1, seconds=200)
    assert found.busy == pytest.approx(1 * 2 * MEASURED.claim_us / 1e6 / 2, rel=0.2)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.000123, "", "0.00012"),
        (0, "B", "0 B"),
        (999, "/s", "1,000/s"),
        (66_000, "", "66 k"),
        (66_000, "/s", "66 k/s"),
        (2.2e12, "B", "2.2 TB"),
    ],
)
def test_quantities_have_two_digits(value, unit, text):
    assert scale_model.quantity(value, unit) == text


def test_one_shape_is_beyond_most_limits_and_transforms_are_beyond_none():
    beyond = [sum(share > 1 for share in shares(shape).values()) for shape in SHAPES]
    assert beyond == [7, 1, 0, 0, 1]
    assert [scale_model.first_limit(shape)[0] for shape in SHAPES] == [
        "listing of objects, one process",
        "wakeups of idle workers",
        "maintenance by workers",
        "maintenance by workers",
        "one listener, served online",
    ]


@pytest.fixture
def storage(postgres, tmp_path):
    return JobStorage(POSTGRES, postgres.url(postgres.create_database()), tmp_path)


@pytest.mark.postgres
def test_costs_of_jobs_are_measured(storage, monkeypatch):
    monkeypatch.setattr(scale_limits, "WAITING", 500)
    found = scale_limits.of_jobs(storage, 0.05)
    assert min(each.per_s for each in found.values()) > 1
    assert "jobs claimed and settled, 8 at a time" in found


@pytest.mark.postgres
def test_rows_of_ended_jobs_are_measured(storage):
    found = scale_limits.of_rows(storage, 200)
    assert [500 < each.per_s < 20_000 for each in found.values()] == [True, True]
    with storage.ledger() as ledger:
        assert ledger.counts("default").backlog == 0


@pytest.mark.postgres
def test_fleet_is_registered_and_measured(storage):
    found = scale_limits.of_fleet(storage, 3, 0.05)
    assert {"heartbeats with 8 jobs", "decisions over 3 workers", "rounds of the reaper"} <= found.keys()
    with storage.ledger() as ledger:
        assert [record.running for record in ledger.workers()] == [8, 8, 8]


@pytest.mark.postgres
def test_ended_jobs_are_deleted(storage):
    scale_limits.of_retention(storage, 1000, 0.01)
    with storage.ledger() as ledger:
        assert len(ledger.ended_before(ledger.now_ms(), limit=1000)) < 1000


@pytest.mark.postgres
def test_notices_reach_all_listeners(storage, monkeypatch):
    monkeypatch.setattr(scale_limits, "LISTENERS", (0, 2))
    monkeypatch.setattr(scale_limits, "NOTICES", 3)
    assert len(scale_limits.of_notices(storage)) == 4


@pytest.mark.postgres
def test_webhooks_are_counted_by_their_receiver(storage):
    assert min(each.per_s for each in scale_limits.of_deliveries(storage, 20).values()) > 1


@pytest.mark.postgres
def test_batches_over_http_are_accepted(storage, monkeypatch):
    monkeypatch.setattr(scale_limits, "API_BATCHES", 1)
    (found,) = scale_limits.of_api(storage).values()
    assert found.per_s > 1


@pytest.mark.s3
def test_objects_of_a_folder_and_of_a_bucket_are_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(scale_limits, "FOLDER", tmp_path)
    assert min(each.per_s for each in scale_limits.of_listing(30).values()) > 1
