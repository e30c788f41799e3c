"""What a transform makes of stores, disks, objects and models that fail: nothing is lost, and what is told is true."""

import gzip
import random
from pathlib import Path

import pytest

from headrace.storage import draft, objects
from integration.command import headrace
from integration.transforming import ECHO, outputs
from servers.faulty_proxy import FaultyProxy

MODEL = str(Path(__file__).parent / "killed_model.py")


def rows(count: int, seed: int) -> bytes:
    """CSV of an ID that may be quoted, with newlines in it, and four numbers; some rows are bad."""
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
    """A large file, a packed one, an empty one, and small ones, by name."""
    rng = random.Random(5)
    files = {
        "large.csv": rows(9_000, 1),
        "day/packed.csv.gz": gzip.compress(rows(3_000, 2)),
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
        "--batch-rows", "500", "--json", *more,
    ]  # fmt: skip


# A store that fails


class Bucket:
    """A bucket on the S3 server, behind headrace's back."""

    def __init__(self, server) -> None:
        self.name = server.bucket()
        self.uri = f"s3://{self.name}"
        self.client = server.client()

    def fill(self, folder: str, files: dict[str, bytes]) -> None:
        for name, data in files.items():
            self.client.put_object(Bucket=self.name, Key=f"{folder}/{name}", Body=data)

    def contents(self, folder: str) -> dict[str, bytes]:
        """What readers of an output folder see, but for the report."""
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
def test_a_store_that_fails_a_fifth_of_all_requests_costs_nothing(
    tmp_path, s3_server, bucket, workers, monkeypatch
):
    """500s, 503s, connections that end without an answer, in the middle of one, or after the work was done."""
    monkeypatch.setattr(objects, "FIRST_RANGE_BYTES", 20_000)
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
    expected = {
        name: data.replace(f"{tmp_path}/in/".encode(), f"{bucket.uri}/in/".encode())
        for name, data in outputs(tmp_path / "out").items()
    }
    assert bucket.contents("out") == expected
    counts = ("records_in", "rows_out", "rows_failed", "objects_done", "objects_broken", "failures")
    assert {c: done.report[c] for c in counts} == {c: undisturbed.report[c] for c in counts}
    assert {fault for method, fault in proxy.spoilt if method == "GET"} == {
        "500",
        "503",
        "reset",
        "cut",
        "lost",
    }
    assert {fault for method, fault in proxy.spoilt if method == "PUT"} == {"500", "503", "reset", "lost"}
    assert proxy.spoilt.total() > 40


@pytest.mark.s3
def test_a_large_output_is_put_together_of_segments_and_uploaded_in_parts_through_faults(
    tmp_path, s3_server, bucket, monkeypatch
):
    monkeypatch.setattr(draft, "SEGMENT_BYTES", 1_500_000)
    monkeypatch.setattr(objects, "PART_BYTES", 5 << 20)  # the least that S3 takes
    text = b"".join(b'%d,"%d\n%s"\n' % (row, row, b"x" * (row % 300)) for row in range(90_000))
    bucket.fill("in", {"large.csv": text, "small.csv": b"1,2\n"})
    with FaultyProxy(s3_server.endpoint, share=0.2, seed=3) as proxy:
        done = headrace(
            "transform", f"{bucket.uri}/in/", f"{bucket.uri}/out", "--model", ECHO, "--accept", "text",
            "--task-bytes", "4m", "--json", environ=proxy.environ(s3_server.environ),
        )  # fmt: skip
    assert done.code == 0, done.out[-2_000:] + done.err
    assert bucket.contents("out") == {"large.csv.out": text, "small.csv.out": b"1,2\n"}
    assert done.report["tasks"] > 3
    assert sum(count for (method, _), count in proxy.spoilt.items() if method in {"PUT", "POST"}) > 5
    assert not bucket.client.list_multipart_uploads(Bucket=bucket.name).get("Uploads")
    listed = bucket.client.list_objects_v2(Bucket=bucket.name, Prefix="out/_headrace/drafts/")
    assert not listed.get("Contents")
