"""Whole transforms as Beam pipelines: the same bytes as here, whatever dies, and whatever a runner says."""

import gzip
import os
import signal
import time
from pathlib import Path

import pytest

from headrace.app.transforming import open_transform, transform_sync
from headrace.app.workers import DataRegions, Workers
from headrace.core.errors import ConfigError, InstanceLostError, RunnerError, TooManyFailuresError
from headrace.storage.regions import RegionRules
from headrace.storage.resolve import Stores
from headrace.transforms.ledger import TransformLedger
from headrace.transforms.runners.engines import BeamWorkers
from headrace.transforms.settings import FailurePolicy, TaskSettings, TransformSettings
from integration.transforming import leftovers, outputs
from transforms.runners.doomed_model import FAILS, KILLS, SPEC, WAITS
from transforms.support import outputs as outputs_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ONE = BeamWorkers(("--direct_running_mode=in_memory",), poll_s=0.1)
"""The pipeline's own process is the worker: as quick as Beam can begin."""
APPEARS_S = 60.0


def rows(count: int, start: int, *, more: dict[int, float] | None = None) -> bytes:
    first = {row: float(start + row) for row in range(count)} | (more or {})
    return b"".join(b"%g,%d\n" % (first[row], row) for row in range(count))


def settings(**more) -> TransformSettings:
    return TransformSettings(tasks=TaskSettings(task_bytes=2_000, task_objects_max=1), **more)


@pytest.fixture
def source(tmp_path, monkeypatch) -> Path:
    """A file in ranges, with records that fail; a packed one; small ones."""
    monkeypatch.setenv("DOOMED", str(tmp_path))
    folder = tmp_path / "in"
    (folder / "day").mkdir(parents=True)
    (folder / "large.csv").write_bytes(rows(1_000, 0, more={17: FAILS, 900: FAILS}))
    (folder / "packed.csv.gz").write_bytes(gzip.compress(rows(300, 1)))
    for number in range(4):
        (folder / "day" / f"{number}.csv").write_bytes(rows(30, number))
    return folder


def transform(source: Path, to: str, workers, **more):
    given = {"model": SPEC, "settings": settings(), **more}
    return transform_sync(f"{source}/", f"{source.parent}/{to}/", workers=workers, **given)


def as_here(source: Path, to: str) -> None:
    """The outputs are those of one process."""
    report = transform(source, "here", Workers(), if_exists="overwrite")
    assert report.status == "complete"
    assert outputs(source.parent / to) == outputs(source.parent / "here")


def ledger_of(source: Path, to: str) -> TransformLedger:
    destination = f"{source.parent}/{to}/"
    return TransformLedger(Stores().for_uri(destination), destination)


def pid_in(path: Path) -> int:
    """The process number that a file names, once it does."""
    deadline = time.monotonic() + APPEARS_S
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < deadline, f"{path} never appears"
        time.sleep(0.02)
    return int(path.read_text())


def test_a_killed_worker_process_costs_what_it_had_not_committed(source):
    """Beam's DirectRunner would wait for it for ever."""
    (source / "day" / "9.csv").write_bytes(rows(200, 0, more={120: WAITS}))
    opened = open_transform(
        f"{source}/",
        f"{source.parent}/out/",
        model=SPEC,
        settings=settings(),
        workers=BeamWorkers(direct_workers=2, poll_s=0.1),
    )
    killed: list[int] = []

    def kill(record) -> None:
        """By then each of both has something, and one of them waits."""
        if not killed and (source.parent / "waits").exists():
            killed.append(pid_in(source.parent / "waits"))
            os.kill(killed[0], signal.SIGKILL)

    with opened as run:
        runner = run._runner
        look = runner._look
        runner._look = lambda work, mailbox: (look(work, mailbox), kill(None))
        report = run.execute()
    assert len(killed) == 1
    assert report.status == "complete"
    assert (report.records_in, report.rows_failed) == (1_620, 2)
    assert report.records_in == report.rows_out + report.rows_failed
    as_here(source, "out")
    assert leftovers(source.parent / "out") == []
    assert not list((source.parent / "out" / "_headrace").glob("workers/*"))


def test_a_task_that_kills_workers_is_left_out_and_named(source):
    (source / "day" / "2.csv").write_bytes(rows(120, 0, more={80: KILLS}))
    with pytest.raises(InstanceLostError, match=r"day/2\.csv, or soon behind"):
        transform(source, "out", ONE)
    ledger = ledger_of(source, "out")
    planned = {o.info.uri.rpartition("/")[2]: number for number, o in enumerate(ledger.objects())}
    lacking = {planned["2.csv"]}
    shards = {s.index for record in ledger.tasks().values() for s in record.shards}
    assert set(range(len(planned))) - shards == lacking


@pytest.mark.s3
def test_over_object_storage(source, s3_server):
    """Letters and all."""
    uri, stores = f"s3://{s3_server.bucket()}", Stores(s3_server.environ)
    for path in (p for p in source.rglob("*") if p.is_file()):
        stores.for_uri(uri).put(f"{uri}/in/{path.relative_to(source)}", path.read_bytes())
    given = {"model": SPEC, "settings": settings(), "workers": ONE, "stores": stores}
    assert transform_sync(f"{uri}/in/", f"{uri}/out/", **given).status == "complete"
    transform(source, "here", Workers())
    found, expected = outputs_in(stores, f"{uri}/out/"), outputs(source.parent / "here")
    assert found.keys() == expected.keys()
    # Failed records name their objects.
    assert [name for name in found if name.endswith(".out") and found[name] != expected[name]] == []


def test_it_drains_and_goes_on(source):
    opened = open_transform(
        f"{source}/", f"{source.parent}/out/", model=SPEC, settings=settings(), workers=ONE
    )
    with opened as run:
        take = run._runner._take

        def drained(letter, work) -> None:
            take(letter, work)
            if letter.done:
                run.drain()

        run._runner._take = drained
        report = run.execute()
    assert report.status in {"drained", "complete"}
    assert transform(source, "out", ONE, if_exists="resume").status == "complete"
    as_here(source, "out")


def test_what_breaks_tasks_is_raised_here(source):
    with pytest.raises(TooManyFailuresError, match="on_error is job"):
        transform(source, "out", ONE, settings=settings(failures=FailurePolicy(on_error="job")))


def test_a_runner_that_says_it_is_done_is_not_believed(source):
    lying = BeamWorkers(("--runner=transforms.runners.losing_runner.LosingRunner",), poll_s=0.1)
    with pytest.raises(RunnerError, match=r"LosingRunner says that its pipeline is done, .* lacks \d+ tasks"):
        transform(source, "out", lying)


def test_a_runner_that_fails_says_why(source):
    failing = BeamWorkers(("--runner=transforms.runners.losing_runner.FailingRunner",), poll_s=0.1)
    with pytest.raises(RunnerError, match="the job server is not there"):
        transform(source, "out", failing)


def test_ranges_that_were_guessed_wrong_are_done_again(source):
    """Quoted cells with newlines: where a range begins is not known before the one before it is done."""
    text = b"".join(b'%d,"1\n"\n' % row if row % 3 else b"%d,2\n" % row for row in range(1_500))
    (source / "large.csv").write_bytes(text)
    assert transform(source, "out", ONE).status == "complete"
    as_here(source, "out")


def test_own_regions_only_and_the_rest_elsewhere(source):
    rules = RegionRules.parse([f"{source}/day/=eu", f"{source}/=us", f"{source.parent}/out/=us"])
    first = transform(source, "out", ONE, regions=DataRegions(rules, "eu", "never"))
    assert first.status == "partial"
    assert (first.objects_done, set(first.tasks_left)) == (4, {"us"})
    last = transform(source, "out", ONE, regions=DataRegions(rules, "us", "never"), if_exists="resume")
    assert last.status == "complete"
    regions = {record.region for record in ledger_of(source, "out").tasks().values()}
    assert regions == {"eu", "us"}
    size = sum(path.stat().st_size for path in (source.parent / "out" / "day").glob("*.out"))
    assert size > 0
    assert first.bytes_across_regions == [{"from": "eu", "to": "us", "bytes": size}]
    assert last.bytes_across_regions == first.bytes_across_regions
    as_here(source, "out")


@pytest.mark.parametrize(
    "options", [("--runner=DaskRunner",), ("--runner", "apache_beam.runners.dask.dask_runner.DaskRunner")]
)
def test_a_runner_that_drops_elements_is_refused(options):
    with pytest.raises(ConfigError, match="drops what a step gives at the end of a bundle"):
        BeamWorkers(options)


def test_what_the_direct_runner_is_told():
    assert BeamWorkers(direct_workers=3).all_options == (
        "--direct_num_workers=3",
        "--direct_running_mode=multi_processing",
    )
    said = BeamWorkers(("--runner=DirectRunner", "--direct_num_workers=5"))
    assert said.direct
    assert said.all_options[2:] == ("--direct_running_mode=multi_processing",)
    flink = BeamWorkers(("--runner=FlinkRunner", "--parallelism=8"))
    assert not flink.direct
    assert flink.all_options == flink.options
