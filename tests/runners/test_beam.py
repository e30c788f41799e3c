"""Whole transforms as Beam pipelines, with killed workers and faulty runners."""

import gzip
import os
import signal
from pathlib import Path

import pytest

from headrace.app.runners import DataRegions, Workers
from headrace.app.runs import open_run, transform_sync
from headrace.core.errors import InstanceLostError, RunnerError, TooManyFailuresError
from headrace.runners.engines import BeamWorkers
from headrace.runs.failure_policy import FailurePolicy
from headrace.runs.ledger import Ledger
from headrace.runs.settings import TaskSettings, TransformSettings
from headrace.storage.regions import RegionRules
from headrace.storage.resolve import Stores
from integration.transform_process import leftovers, outputs
from runners.fault_model import FAILS, KILLS, SPEC, WAITS
from runs.support import outputs as outputs_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
IN_MEMORY = BeamWorkers(("--direct_running_mode=in_memory",), poll_s=0.1)
"""The pipeline's own process is the worker, for a quick start."""


def rows(count: int, start: int, *, more: dict[int, float] | None = None) -> bytes:
    first = {row: float(start + row) for row in range(count)} | (more or {})
    return b"".join(b"%g,%d\n" % (first[row], row) for row in range(count))


def settings(**more) -> TransformSettings:
    return TransformSettings(tasks=TaskSettings(task_bytes=2_000, task_objects_max=1), **more)


@pytest.fixture
def source(tmp_path, monkeypatch) -> Path:
    """A file in ranges with failing records, a packed file, and small files."""
    monkeypatch.setenv("FAULT_MODEL_FOLDER", str(tmp_path))
    folder = tmp_path / "in"
    (folder / "day").mkdir(parents=True)
    (folder / "large.csv").write_bytes(rows(1_000, 0, more={17: FAILS, 900: FAILS}))
    (folder / "packed.csv.gz").write_bytes(gzip.compress(rows(300, 1)))
    for number in range(4):
        (folder / "day" / f"{number}.csv").write_bytes(rows(30, number))
    return folder


def transform(source: Path, to: str, workers, **more):
    arguments = {"model": SPEC, "settings": settings(), **more}
    return transform_sync(f"{source}/", f"{source.parent}/{to}/", workers=workers, **arguments)


def assert_local_outputs(source: Path, to: str) -> None:
    """Assert that the outputs equal those of one process."""
    report = transform(source, "here", Workers(), overwrite=True)
    assert report.status == "complete"
    assert outputs(source.parent / to) == outputs(source.parent / "here")


def ledger_of(source: Path, to: str) -> Ledger:
    destination = f"{source.parent}/{to}/"
    return Ledger(Stores().for_uri(destination), destination)


def test_killed_worker_process_costs_uncommitted_work(source):
    """Beam's DirectRunner itself would wait for the worker forever."""
    (source / "day" / "9.csv").write_bytes(rows(200, 0, more={120: WAITS}))
    opened = open_run(
        f"{source}/",
        output=f"{source.parent}/out/",
        model=SPEC,
        settings=settings(),
        workers=BeamWorkers(direct_workers=2, poll_s=0.1),
    )
    killed: list[int] = []
    with opened as run:
        runner = run._scoring._runner
        poll = runner._poll

        def poll_and_kill(work, status_store) -> None:
            """Kill the waiting worker, once each of both has tasks."""
            poll(work, status_store)
            waits = source.parent / "waits"
            if not killed and waits.exists():
                killed.append(int(waits.read_text()))
                os.kill(killed[0], signal.SIGKILL)
                runner._workers = IN_MEMORY  # a quick start of the next pipeline

        runner._poll = poll_and_kill
        report = run.execute()
    assert len(killed) == 1
    assert report.status == "complete"
    assert (report.records_in, report.rows_failed) == (1_620, 2)
    assert report.records_in == report.rows_out + report.rows_failed
    assert_local_outputs(source, "out")
    assert leftovers(source.parent / "out") == []
    assert not list((source.parent / "out" / "_headrace").glob("workers/*"))


def test_task_that_kills_workers_is_excluded(source):
    (source / "day" / "2.csv").write_bytes(rows(120, 0, more={80: KILLS}))
    with pytest.raises(InstanceLostError, match=r"day/2\.csv, or soon after"):
        transform(source, "out", IN_MEMORY)
    ledger = ledger_of(source, "out")
    objects = ledger.planned_objects()
    planned = {o.info.uri.rpartition("/")[2]: number for number, o in enumerate(objects)}
    lacking = {planned["2.csv"]}
    shards = {s.index for record in ledger.tasks().values() for s in record.shards}
    assert set(range(len(planned))) - shards == lacking


@pytest.mark.s3
def test_beam_over_object_storage(source, s3_server):
    uri, stores = f"s3://{s3_server.bucket()}", Stores(s3_server.environ)
    for path in (p for p in source.rglob("*") if p.is_file()):
        stores.for_uri(uri).put(f"{uri}/in/{path.relative_to(source)}", path.read_bytes())
    arguments = {"model": SPEC, "settings": settings(), "workers": IN_MEMORY, "stores": stores}
    assert transform_sync(f"{uri}/in/", f"{uri}/out/", **arguments).status == "complete"
    transform(source, "here", Workers())
    found, expected = outputs_in(stores, f"{uri}/out/"), outputs(source.parent / "here")
    assert found.keys() == expected.keys()
    # Failed records name their objects.
    assert [name for name in found if name.endswith(".out") and found[name] != expected[name]] == []


def test_drained_run_resumes(source):
    opened = open_run(
        f"{source}/", output=f"{source.parent}/out/", model=SPEC, settings=settings(), workers=IN_MEMORY
    )
    with opened as run:
        update = run._scoring._runner._update

        def drained(status, work) -> None:
            update(status, work)
            if status.done:
                run.drain()

        run._scoring._runner._update = drained
        report = run.execute()
    assert report.status in {"drained", "complete"}
    assert transform(source, "out", IN_MEMORY, resume=True).status == "complete"
    assert_local_outputs(source, "out")


def test_task_error_is_raised_in_the_run(source):
    with pytest.raises(TooManyFailuresError, match="on_error is job"):
        transform(source, "out", IN_MEMORY, settings=settings(failures=FailurePolicy(on_error="job")))


def test_false_success_of_a_runner_is_an_error(source):
    lying = BeamWorkers(("--runner=runners.faulty_beam_runners.LosingRunner",), poll_s=0.1)
    with pytest.raises(
        RunnerError, match=r"LosingRunner reports that its pipeline is done, .* none of the \d+ tasks"
    ):
        transform(source, "out", lying)


def test_runner_error_has_its_reason(source):
    failing = BeamWorkers(("--runner=runners.faulty_beam_runners.FailingRunner",), poll_s=0.1)
    with pytest.raises(RunnerError, match="the job server is not there"):
        transform(source, "out", failing)


def test_tasks_of_other_regions_are_left(source):
    """A range is misplaced, too: its cells have newlines, so its start is known only after the one before."""
    text = b"".join(b'%d,"1\n"\n' % row if row % 3 else b"%d,2\n" % row for row in range(1_500))
    (source / "large.csv").write_bytes(text)
    rules = RegionRules.parse([f"{source}/day/=eu", f"{source}/=us", f"{source.parent}/out/=us"])
    first = transform(source, "out", IN_MEMORY, regions=DataRegions(rules, "eu", "never"))
    assert first.status == "partial"
    assert (first.objects_done, set(first.tasks_left)) == (4, {"us"})
    last = transform(source, "out", IN_MEMORY, regions=DataRegions(rules, "us", "never"), resume=True)
    assert last.status == "complete"
    regions = {record.region for record in ledger_of(source, "out").tasks().values()}
    assert regions == {"eu", "us"}
    size = sum(path.stat().st_size for path in (source.parent / "out" / "day").glob("*.out"))
    assert size > 0
    assert first.bytes_across_regions == [{"from": "eu", "to": "us", "bytes": size}]
    assert last.bytes_across_regions == first.bytes_across_regions
    assert_local_outputs(source, "out")
