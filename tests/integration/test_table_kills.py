"""Streams and transforms into tables that are killed at random and resumed: every row once."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

import levels
from headrace.app.runs import run_sync
from headrace.runs.output_settings import OutputSettings
from headrace.runs.settings import StreamSettings
from headrace.storage.resolve import Stores
from integration.random_kills import kill, run_with_kills, wait_for_random_moment

deltalake = pytest.importorskip("deltalake")
catalogs = pytest.importorskip("pyiceberg.catalog")
pytest.importorskip("pyarrow")

FILES, ROWS = levels.by_level(6, 6, 12), 500
MODEL = str(Path(__file__).parent / "killed_model.py")


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for file in range(FILES):
        lines = (f"{file * ROWS + row},0,0,0\n" for row in range(ROWS))
        (folder / f"{file:03d}.csv").write_text("".join(lines))
    return folder


STREAM = """
import sys
import headrace

output = headrace.OutputSettings(part_rows_max=200)
settings = headrace.StreamSettings(output=output, flow=headrace.FlowSettings(batch_rows_max=100))
headrace.run_sync(sys.argv[1], output=sys.argv[2], model=sys.argv[3], settings=settings, resume=True)
"""
"""No option of the command makes small parts of Parquet."""


def command(kind: str, source: Path, output: str) -> list[str]:
    if kind == "stream":
        return [sys.executable, "-c", STREAM, f"{source}/", output, MODEL]
    return [
        sys.executable, "-m", "headrace", "transform", f"{source}/", output, "--model", MODEL, "--quiet",
        "--resume",
    ]  # fmt: skip


def read_delta(table: Path) -> tuple[int, list[float]]:
    """Return the number of commits and the rows."""
    opened = deltalake.DeltaTable(table)
    return opened.version() + 1, sorted(opened.to_pyarrow_table().column(0).to_pylist())


@pytest.fixture
def catalog(tmp_path, monkeypatch):
    """Return a catalog whose tables are in the test's folder, also for the processes of the test."""
    settings = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    for name, value in settings.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name.upper()}", value)
    opened = catalogs.load_catalog("lake", **settings)
    opened.create_namespace("scores", {"location": f"file://{tmp_path}"})
    return opened


def kill_at_random(process: subprocess.Popen[bytes], table: Path, rng: random.Random) -> bool:
    """Kill the run after a few changes of its ledger, often near its end. Return False if it ended before."""
    if not wait_for_random_moment(process, table, rng, changes=range(1, 20)):
        return False
    kill(process)
    return True


@pytest.mark.in_turn
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["stream", "transform"])
def test_killed_run_commits_every_row_of_a_delta_table_once(tmp_path, source, kind):
    run_with_kills(
        lambda table: command(kind, source, f"delta:{table}"),
        tmp_path,
        kill_at_random,
        read=read_delta,
        expected=(1, [float(number) for number in range(FILES * ROWS)]),
        status=0,
    )


@pytest.mark.in_turn
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["stream", "transform"])
def test_killed_run_commits_every_row_of_an_iceberg_table_once(tmp_path, source, catalog, kind):
    def read(table: Path) -> tuple[int, list[float]]:
        opened = catalog.load_table(f"scores.{table.name}")
        return len(opened.snapshots()), sorted(opened.scan().to_arrow().column(0).to_pylist())

    run_with_kills(
        lambda table: command(kind, source, f"iceberg:lake/scores.{table.name}"),
        tmp_path,
        kill_at_random,
        read=read,
        expected=(1, [float(number) for number in range(FILES * ROWS)]),
        status=0,
    )


def test_table_in_an_object_store_has_every_row_once(source, s3_server):
    uri = f"s3://{s3_server.bucket()}/lake/scores"
    settings = StreamSettings(output=OutputSettings(part_rows_max=200))
    with Stores(s3_server.environ) as stores:
        for resume in (False, True, False):
            run_sync(
                f"{source}/",
                output=f"delta:{uri}",
                model=MODEL,
                settings=settings,
                stores=stores,
                resume=resume,
            )
    environ = s3_server.environ
    options = {
        "AWS_ACCESS_KEY_ID": environ["AWS_ACCESS_KEY_ID"],
        "AWS_SECRET_ACCESS_KEY": environ["AWS_SECRET_ACCESS_KEY"],
        "AWS_ENDPOINT_URL": s3_server.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
    }
    table = deltalake.DeltaTable(uri, storage_options=options)
    assert (table.version(), table.to_pyarrow_table().num_rows) == (1, 2 * FILES * ROWS)
