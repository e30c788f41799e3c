"""Fault 11: payloads that end early, or are damaged in the middle."""

import gzip
import io
import random
import tarfile

import pytest

from faults.bench import MODEL, Bench
from headrace.jobs.job import NewJob
from headrace.jobs.state import Cause, JobState

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ROWS = 3000
FIRST = 100_000


def _rows(first: int, rows: int = ROWS) -> bytes:
    # Digits do not compress, so that half of the bytes is about half of the rows.
    choice = random.Random(first)
    return "".join(f"{n},0.{choice.randrange(10**15):015d},0\n" for n in range(first, first + rows)).encode()


def _tar(members: dict[str, bytes]) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return archive.getvalue()


def _damaged(packed: bytes) -> bytes:
    at = len(packed) * 2 // 3
    return packed[:at] + bytes(64) + packed[at + 64 :]


def _payloads() -> dict[str, bytes]:
    rows = _rows(FIRST)
    tar = _tar({"a.csv": rows, "b.csv": _rows(2 * FIRST)})
    return {
        "cut.csv.gz": gzip.compress(rows)[:20_000],
        "damaged.csv.gz": _damaged(gzip.compress(rows)),
        "cut.tar": tar[: 3 * len(rows) // 2],
        "cut.tar.gz": gzip.compress(tar)[:60_000],
    }


BROKEN_MEMBERS = {"cut.tar": "b.csv", "cut.tar.gz": "b.csv"}


def _submit(bench: Bench, kind: str, name: str, data: bytes, **spec) -> int:
    uri = f"{bench.store_uri}in/{name}"
    bench.stores.for_uri(uri).put(uri, data)
    (submitted,) = bench.ledger.submit([NewJob(MODEL, kind, input_uri=uri, attempts_max=3, **spec)])
    number = bench.add_job(submitted.job.id)
    bench.unchecked_results.add(number)
    return number


def test_fault_11_archive_that_is_cut_or_damaged(sqlite_bench):
    """Fault 11: the job fails at once and names member and byte; other jobs are not concerned.

    A transform keeps the rows before the damage.
    """
    bench = sqlite_bench
    out = bench.folder / "out"
    payloads = _payloads()
    inferred = {name: _submit(bench, "infer", name, data) for name, data in payloads.items()}
    for name, data in payloads.items():
        _submit(bench, "transform", name, data, output_uri=f"{out}/{name}/")
    bench.submit(10)
    bench.worker(serving={"max_batch_rows": 500}).wait_ready()
    bench.wait_ended()
    for name, number in inferred.items():
        job = bench.job(number)
        assert (job.state, job.failure.cause, job.attempt) == (JobState.FAILED, Cause.INPUT, 1), name
        assert "byte" in job.failure.message, job.failure.message
        assert BROKEN_MEMBERS.get(name, "") in job.failure.message
        assert str(bench.folder) not in job.failure.message
    for name in payloads:
        # The output of an object that cannot be read to its end is partial.
        outputs = [path for path in (out / name).rglob("*.out*") if path.suffix in {".out", ".partial"}]
        values = [float(line) for path in sorted(outputs) for line in path.read_text().splitlines()]
        assert len(values) > 500, name
        first = [2.0 * n + 1 for n in range(FIRST, FIRST + ROWS)]
        # Only the checksum at its end shows that a damaged stream unpacked to wrong bytes.
        kept = len(first) // 2 if name.startswith("damaged") else min(len(values), len(first))
        assert values[:kept] == first[:kept], name
        assert '"objects_broken": 1' in (out / name / "_report.json").read_text()
    bench.costs(dict.fromkeys(inferred.values(), JobState.FAILED))
