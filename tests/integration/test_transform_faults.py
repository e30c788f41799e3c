"""Transforms with stores, disks, objects and models that fail: no record is lost, errors are true."""

import gzip
import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.storage import cloud_store, draft
from integration.command import headrace
from integration.hooked_model import SPEC, Hooked
from integration.transform_process import ECHO, failed, leftovers, outputs, run
from servers.faulty_proxy import FaultyProxy

MODEL = str(Path(__file__).parent / "weighted_model.py")


def rows(count: int, seed: int) -> bytes:
    """Return CSV of an ID, now and then quoted with newlines, and four numbers; some rows are bad."""
    rng = random.Random(seed)
    lines = []
    for row in range(count):
        cells = [f"{rng.random():.4f}" for _ in range(4)]
        name = f'"row, ""{row}""\nof many"' if row % 7 == 3 else f"row {row}"
        if row % 97 == 5:
            cells[2] = "oops"
        lines.append(",".join([name, *cells]))
    return "\n".join(lines).encode() + b"\n"


def make_source(folder: Path, *, small: int) -> dict[str, bytes]:
    """Write a large file, a packed one, an empty one and small ones. Return them by name."""
    rng = random.Random(5)
    files = {
        "large.csv": rows(5_000, 1),
        "day/packed.csv.gz": gzip.compress(rows(2_000, 2)),
        "day/empty.csv": b"",
    }
    files |= {f"day/{number:03d}.csv": rows(rng.randrange(30), number) for number in range(small)}
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return files


def words(*more: str) -> list[str]:
    return [
        "--model", MODEL, "--input-filter", "$[1:]", "--join", "input", "--task-bytes", "60k",
        "--batch-rows-max", "500", "--json", *more,
    ]  # fmt: skip


# A store that fails


class Bucket:
    """A bucket on the S3 server that the test reads and writes directly."""

    def __init__(self, server) -> None:
        self.name = server.bucket()
        self.uri = f"s3://{self.name}"
        self.client = server.client()

    def fill(self, folder: str, files: dict[str, bytes]) -> None:
        for name, data in files.items():
            self.client.put_object(Bucket=self.name, Key=f"{folder}/{name}", Body=data)

    def contents(self, folder: str) -> dict[str, bytes]:
        """Return the objects that readers of an output folder see, without the report."""
        found = {}
        for page in self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.name, Prefix=f"{folder}/"
        ):
            for entry in page.get("Contents", []):
                key = entry["Key"]
                name = key.removeprefix(f"{folder}/")
                if not name.startswith("_"):
                    found[name] = self.client.get_object(Bucket=self.name, Key=key)["Body"].read()
        return found


@pytest.fixture
def bucket(s3_server) -> Bucket:
    return Bucket(s3_server)


@pytest.mark.s3
@pytest.mark.parametrize("workers", ["1", "2"])
def test_store_that_fails_a_fifth_of_all_requests_changes_nothing(
    tmp_path, s3_server, bucket, workers, monkeypatch
):
    """500s, 503s, connections closed before or within a response, and lost responses."""
    monkeypatch.setattr(cloud_store, "FIRST_RANGE_BYTES", 20_000)
    files = make_source(tmp_path / "in", small=30)
    undisturbed = headrace("transform", f"{tmp_path}/in/", tmp_path / "out", *words())
    assert undisturbed.code == 3, undisturbed.err
    bucket.fill("in", files)
    with FaultyProxy(s3_server.endpoint, share=0.2, seed=int(workers)) as proxy:
        done = headrace(
            "transform", f"{bucket.uri}/in/", f"{bucket.uri}/out", *words("--workers", workers),
            environ=proxy.environ(s3_server.environ),
        )  # fmt: skip
    assert done.code == 3, done.out[-2_000:] + done.err
    expected = moved(outputs(tmp_path / "out"), f"{tmp_path}/in/", f"{bucket.uri}/in/")
    assert bucket.contents("out") == expected
    counts = ("records_in", "rows_out", "rows_failed", "objects_done", "objects_broken", "failures")
    assert {c: done.report[c] for c in counts} == {c: undisturbed.report[c] for c in counts}
    assert {fault for method, fault in proxy.injected if method == "GET"} == {
        "500",
        "503",
        "reset",
        "cut",
        "lost",
    }
    assert {fault for method, fault in proxy.injected if method == "PUT"} == {"500", "503", "reset", "lost"}
    assert proxy.injected.total() > 15


@pytest.mark.s3
def test_large_output_is_assembled_and_uploaded_in_parts_through_faults(
    tmp_path, s3_server, bucket, monkeypatch
):
    monkeypatch.setattr(draft, "SEGMENT_BYTES", 1_500_000)
    monkeypatch.setattr(cloud_store, "PART_BYTES", 5 << 20)  # the minimum of S3
    text = b"".join(b'%d,"%d\n%s"\n' % (row, row, b"x" * (row % 300)) for row in range(90_000))
    bucket.fill("in", {"large.csv": text, "small.csv": b"1,2\n"})
    with FaultyProxy(s3_server.endpoint, share=0.4, seed=3) as proxy:
        done = headrace(
            "transform", f"{bucket.uri}/in/", f"{bucket.uri}/out", "--model", ECHO, "--accept", "text",
            "--task-bytes", "4m", "--json", environ=proxy.environ(s3_server.environ),
        )  # fmt: skip
    assert done.code == 0, done.out[-2_000:] + done.err
    assert bucket.contents("out") == {"large.csv.out": text, "small.csv.out": b"1,2\n"}
    assert done.report["tasks"] > 3
    assert sum(count for (method, _), count in proxy.injected.items() if method in {"PUT", "POST"}) > 3
    # A lost response to the start of an upload leaves an upload that headrace cannot know.
    nameless = [
        path for method, path in proxy.lost if method == "POST" and path.endswith(("?uploads", "?uploads="))
    ]
    uploads = bucket.client.list_multipart_uploads(Bucket=bucket.name).get("Uploads", [])
    assert len(uploads) <= len(nameless), proxy.lost
    listed = bucket.client.list_objects_v2(Bucket=bucket.name, Prefix="out/_headrace/drafts/")
    assert not listed.get("Contents")


@pytest.mark.s3
@pytest.mark.parametrize("workers", ["1", "2"])
def test_store_outage_ends_the_run_and_resuming_completes_it(tmp_path, s3_server, bucket, workers):
    files = make_source(tmp_path / "in", small=10)
    undisturbed = headrace("transform", f"{tmp_path}/in/", tmp_path / "out", *words())
    bucket.fill("in", files)
    with FaultyProxy(s3_server.endpoint, share=0.0, seed=0) as proxy:
        environ = proxy.environ(s3_server.environ)
        proxy.away_after = 45
        broken = headrace(
            "transform", f"{bucket.uri}/in/", f"{bucket.uri}/out",
            *words("--workers", workers, "--checkpoint-s", "0", "--retry-s", "1"), environ=environ,
        )  # fmt: skip
        assert broken.code == 1, broken.out
        assert broken.lines[-1]["type"] == "UnavailableError"
        assert re.search(
            rf"{bucket.uri}/\S+: (reading|writing|listing) still fails after \d+ attempts over \d+\.\d s",
            broken.lines[-1]["message"],
        )
        proxy.away_after = None
        before = bucket.contents("out")
        resumed = headrace(
            "transform", f"{bucket.uri}/in/", f"{bucket.uri}/out", *words("--workers", workers, "--resume"),
            environ=environ,
        )  # fmt: skip
    assert resumed.code == 3, resumed.out[-2_000:] + resumed.err
    expected = moved(outputs(tmp_path / "out"), f"{tmp_path}/in/", f"{bucket.uri}/in/")
    assert bucket.contents("out") == expected
    assert before.items() <= expected.items()
    assert resumed.report["records_in"] == undisturbed.report["records_in"]
    assert resumed.report["resumed"]


def moved(contents: dict[str, bytes], source: str, to: str) -> dict[str, bytes]:
    """Return outputs with another source's name in their failed records."""
    return {name: data.replace(source.encode(), to.encode()) for name, data in contents.items()}


# A full disk


def whole(output: Path, expected: dict[str, bytes]) -> None:
    """Check that all visible files are complete and equal those of an undisturbed run."""
    for name, data in outputs(output).items():
        if not Path(name).name.startswith("."):
            assert data == expected[name], name


@pytest.mark.parametrize(
    ("workers", "task_bytes"), [("1", "1m"), pytest.param("1", "60k", marks=pytest.mark.soak), ("2", "60k")]
)
def test_file_size_limit_ends_the_run_and_resuming_completes_it(tmp_path, task_bytes, workers):
    """The kernel refuses a write: the error names the file, and no output is incomplete."""
    make_source(tmp_path / "in", small=10)
    more = ["--task-bytes", task_bytes, "--workers", workers]
    done = headrace("transform", f"{tmp_path}/in/", tmp_path / "undisturbed", *words(*more))
    assert done.code == 3
    expected = outputs(tmp_path / "undisturbed")
    output = tmp_path / "out"

    full = run(f"{tmp_path}/in/", output, *words(*more), file_kib_max=100)
    assert full.code == 1, full.out
    error = full.lines[-1]
    assert error["type"] == "StorageError"
    assert re.match(rf"{output}/\S+: File too large", error["message"])
    assert "Traceback" not in full.err
    whole(output, expected)
    assert not (output / "large.csv.out").exists()
    assert not (output / "_report.json").exists()

    resumed = run(f"{tmp_path}/in/", output, *words(*more, "--resume"))
    assert resumed.code == 3, resumed.err
    assert outputs(output) == expected
    assert leftovers(output) == []


@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.soak), "2"])
def test_full_disk_ends_the_run_and_resuming_with_space_completes_it(tmp_path, workers):
    make_source(tmp_path / "in", small=10)
    more = ["--workers", workers]
    assert headrace("transform", f"{tmp_path}/in/", tmp_path / "undisturbed", *words(*more)).code == 3
    expected = outputs(tmp_path / "undisturbed")
    with tiny_disk(tmp_path / "disk", kib=450) as grow:
        output = tmp_path / "disk" / "out"
        full = run(f"{tmp_path}/in/", output, *words(*more))
        assert full.code == 1, full.out
        assert full.lines[-1]["type"] == "StorageError"
        assert re.match(rf"{output}/\S+: No space left on device: free disk space", full.lines[-1]["message"])
        assert "Traceback" not in full.err
        whole(output, expected)
        assert not (output / "_report.json").exists()
        # A retry with the full disk loses nothing.
        assert run(f"{tmp_path}/in/", output, *words(*more, "--resume")).code == 1
        whole(output, expected)
        grow(50_000)
        resumed = run(f"{tmp_path}/in/", output, *words(*more, "--resume"))
        assert resumed.code == 3, resumed.err
        assert outputs(output) == expected
        assert leftovers(output) == []


@contextmanager
def tiny_disk(folder: Path, *, kib: int) -> Iterator[Callable[[int], None]]:
    """Mount a file system of `kib` KiB and return a callable that enlarges it, or skip the test."""
    folder.mkdir()

    def mount(*more: str) -> int:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", *more, "tmpfs", str(folder)], capture_output=True, check=False
        )
        return done.returncode

    if os.geteuid() or shutil.which("mount") is None or mount("-o", f"size={kib}k"):
        pytest.skip("only root may mount a small file system")
    try:
        yield lambda more_kib: assert_zero(mount("-o", f"remount,size={more_kib}k"))
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def assert_zero(code: int) -> None:
    assert code == 0


# A run that stops by itself


@pytest.mark.parametrize("batch_rows", ["50", "500"])
def test_run_ended_by_too_many_failures_continues_where_it_stopped(tmp_path, batch_rows):
    """The batch that ends the run is already written: the checkpoint must include it."""
    make_source(tmp_path / "in", small=10)
    more = ["--task-bytes", "1m", "--batch-rows-max", batch_rows]
    undisturbed = headrace("transform", f"{tmp_path}/in/", tmp_path / "undisturbed", *words(*more))
    assert undisturbed.code == 3
    expected = outputs(tmp_path / "undisturbed")
    for limit in (25, 45, 65):
        stopped = headrace(
            "transform",
            f"{tmp_path}/in/",
            tmp_path / "out",
            *words(*more, "--resume", "--max-failed", str(limit)),
        )
        assert stopped.code == 1
        assert stopped.lines[-1]["type"] == "TooManyFailuresError"
        assert f"failed_rows_max is {limit}" in stopped.lines[-1]["message"]
        whole(tmp_path / "out", expected)
    resumed = headrace("transform", f"{tmp_path}/in/", tmp_path / "out", *words(*more, "--resume"))
    assert resumed.code == 3, resumed.out
    assert outputs(tmp_path / "out") == expected
    assert leftovers(tmp_path / "out") == []
    # Batches of the stopped runs were not predicted again.
    assert resumed.report["model_calls"] < undisturbed.report["model_calls"] / 2


# Objects that vanish or change


def double_rows(first: int, count: int) -> bytes:
    return b"".join(b"%d,1\n" % row for row in range(first, first + count))


@pytest.mark.parametrize("task_bytes", ["20k", "1m"])
@pytest.mark.parametrize("what", ["vanishes", "changes", "is cut"])
def test_object_that_vanishes_or_changes_fails_alone(tmp_path, monkeypatch, task_bytes, what):
    source = tmp_path / "in"
    source.mkdir()
    for number in range(6):
        (source / f"{number}.csv").write_bytes(double_rows(number * 10_000, 9_000))
    victim = source / "4.csv"

    def before_call(call: int) -> None:
        if call == 3 and what == "vanishes":
            victim.unlink()
        elif call == 3 and what == "changes":
            victim.write_bytes(double_rows(1, 9_000))
        elif call == 3:
            os.truncate(victim, 30_000)

    monkeypatch.setattr(Hooked, "before_call", staticmethod(before_call))
    output = tmp_path / "out"
    done = headrace(
        "transform", f"{source}/", output, "--model", SPEC, "--task-bytes", task_bytes,
        "--prefetch-bytes-max", "1k", "--json",
    )  # fmt: skip
    assert done.code == 1, done.out
    assert done.report["objects_broken"] == len(failed(output / "4.csv.out.failed"))
    for number in (0, 1, 2, 3, 5):
        expected = b"".join(
            b"%.1f\n" % (2.0 * row) for row in range(number * 10_000, number * 10_000 + 9_000)
        )
        assert (output / f"{number}.csv.out").read_bytes() == expected
        assert not (output / f"{number}.csv.out.failed").exists()
    first, *_ = failed(output / "4.csv.out.failed")
    assert (first["kind"], first["object"]) == ("object", str(victim))
    assert ("no such file" if what == "vanishes" else "has changed") in first["reason"]
    names = {*(f"{n}.csv.out" for n in (0, 1, 2, 3, 5)), "4.csv.out.partial", "4.csv.out.failed"}
    assert set(outputs(output)) == names
    # The output begins with the rows that were read before.
    rows_out = (output / "4.csv.out.partial").read_bytes().splitlines()
    assert rows_out == [b"%.1f" % (2.0 * row) for row in range(40_000, 40_000 + len(rows_out))]
    assert leftovers(output) == []


def test_object_that_was_away_for_a_while_ends_at_the_first_missing_range(tmp_path, monkeypatch):
    """Later ranges are readable, but their records would stand in the wrong place."""
    source = tmp_path / "in"
    source.mkdir()
    data = double_rows(10_000, 60_000)
    (source / "a.csv").write_bytes(data)

    def before_call(call: int) -> None:
        if call == 10:
            (source / "a.csv").rename(tmp_path / "away")
        elif call == 40:
            (tmp_path / "away").rename(source / "a.csv")

    monkeypatch.setattr(Hooked, "before_call", staticmethod(before_call))
    output = tmp_path / "out"
    done = headrace(
        "transform", f"{source}/", output, "--model", SPEC, "--task-bytes", "20k",
        "--prefetch-bytes-max", "1k", "--json",
    )  # fmt: skip
    assert done.code == 1, done.out
    assert done.report["objects_broken"] == 1
    found = (output / "a.csv.out.partial").read_bytes().splitlines()
    assert 5_000 < len(found) < 50_000
    assert found == [b"%.1f" % (2.0 * row) for row in range(10_000, 10_000 + len(found))]
    (line,) = failed(output / "a.csv.out.failed")
    assert line["kind"] == "object"
    assert line["record"] == line["output_row"] == len(found) == done.report["rows_out"]
    assert line["byte"] == len(b"".join(data.splitlines(keepends=True)[: len(found)]))
    assert line["line"] == 1 + len(found)
    assert done.report["tasks"] > 20
    assert leftovers(output) == []


# A model that kills its process


POISONED = """
import os
from headrace import Model, TensorSpec

class Poisoned(Model):
    max_batch_rows = 100
    inputs = (TensorSpec("x", "FP64", (-1, 2)),)

    def predict(self, x):
        if (x[:, 1] == 666).any():
            os._exit(66)
        return x[:, 0] * 2
"""


def test_object_that_kills_every_worker_is_named_and_the_others_complete(tmp_path):
    source, output = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    for number in range(30):
        rows = double_rows(number * 10_000, 1_000)
        if number == 13:
            rows = rows.replace(b"130777,1", b"130777,666")
        (source / f"{number:02d}.csv").write_bytes(rows)
    (source / "large.csv").write_bytes(double_rows(0, 20_000).replace(b"\n9999,1\n", b"\n9999,666\n"))
    model = tmp_path / "poisoned.py"
    model.write_text(POISONED)
    arguments = [f"{source}/", output, "--model", model, "--task-bytes", "20k", "--workers", "2", "--json"]

    done = run(*arguments)
    assert done.code == 1, done.out
    error = done.lines[-1]
    assert error["type"] == "InstanceLostError"
    positions = re.findall(
        r"with status 66 at record ([\d,]+)(?: of its range from about byte ([\d,]+) on)? of (\S+),",
        error["message"],
    )
    named = {Path(uri).name: int(record.replace(",", "")) for record, start, uri in positions}
    assert named.keys() == {"13.csv", "large.csv"}, error["message"]
    # The batch that killed the worker begins there, or one or two batches earlier.
    assert 500 <= named["13.csv"] <= 777
    assert "Traceback" not in done.err
    found = outputs(output)
    expected = {
        f"{number:02d}.csv.out": b"".join(
            b"%.1f\n" % (2.0 * row) for row in range(number * 10_000, number * 10_000 + 1_000)
        )
        for number in range(30)
    }
    # Objects behind the poisoned one in its task are missing too: the whole task is left out.
    alone = {name for name in expected if name not in found and name > "13"}
    assert alone <= {"13.csv.out", "14.csv.out", "15.csv.out"}
    assert {name: found.get(name) for name in expected if name not in alone} == {
        name: data for name, data in expected.items() if name not in alone
    }
    assert found.keys() & {"13.csv.out", "large.csv.out"} == set()

    # Resuming is safe while the model dies; with another model it is refused.
    assert run(*arguments, "--resume").code == 1
    assert outputs(output) == found
    model.write_text(POISONED.replace("os._exit(66)", "pass"))
    refused = run(*arguments, "--resume")
    assert (refused.code, refused.lines[-1]["type"]) == (1, "ResumeRefusedError")
