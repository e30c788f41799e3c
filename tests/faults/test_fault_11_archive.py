"""Fault 11: payloads that end early, or are spoilt in the middle."""

import gzip
import io
import random
import tarfile

import pytest

from faults.bench import MODEL, Bench
from headrace.jobs.cause import Cause
from headrace.jobs.job import NewJob
from headrace.jobs.state import JobState

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ROWS = 3000
FIRST = 100_000


def _rows(first: int, rows: int = ROWS) -> bytes:
    # Digits that do not compress, so that half of the bytes is about half of the rows.
    choice = random.Random(first)
    return "".join(f"{n},0.{choice.randrange(10**15):015d},0\n" for n in range(first, first + rows)).encode()


def _tar(members: dict[str, bytes]) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return whole.getvalue()


def _spoilt(packed: bytes) -> bytes:
    at = len(packed) * 2 // 3
    return packed[:at] + bytes(64) + packed[at + 64 :]


PAYLOADS = {
    "cut.csv.gz": gzip.compress(_rows(FIRST))[:20_000],
    "spoilt.csv.gz": _spoilt(gzip.compress(_rows(FIRST))),
    "cut.tar": _tar({"a.csv": _rows(FIRST), "b.csv": _rows(2 * FIRST)})[: 3 * len(_rows(FIRST)) // 2],
    "cut.tar.gz": gzip.compress(_tar({"a.csv": _rows(FIRST), "b.csv": _rows(2 * FIRST)}))[:60_000],
}
MEMBERS = {"cut.tar": "b.csv", "cut.tar.gz": "b.csv"}


def _submit(bench: Bench, kind: str, name: str, **spec) -> int:
    uri = f"{bench.store_uri}in/{name}"
    bench.stores.for_uri(uri).put(uri, PAYLOADS[name])
    told = bench.ledger.submit([NewJob(MODEL, kind, input_uri=uri, attempts_max=3, **spec)])
    number = len(bench.ids)
    bench.ids[number] = told[0].job.id
    bench.without_result.add(number)
    return number


def test_fault_11_archive_that_is_cut_or_spoilt_fails_its_job(sqlite_bench):
    """Fault 11: it fails at once, and says where: which member, and which byte. Others are not concerned."""
    bench = sqlite_bench
    spoilt = {name: _submit(bench, "infer", name) for name in PAYLOADS}
    bench.submit(10)
    bench.worker(serving={"max_batch_rows": 500}).wait_ready()
    bench.wait_ended()
    for name, number in spoilt.items():
        job = bench.job(number)
        assert (job.state, job.failure.cause, job.attempt) == (JobState.FAILED, Cause.INPUT, 1), name
        assert "byte" in job.failure.message, job.failure.message
        assert MEMBERS.get(name, "") in job.failure.message
        assert str(bench.folder) not in job.failure.message
    bench.tally(dict.fromkeys(spoilt.values(), JobState.FAILED))


def test_fault_11_archive_s_rows_before_the_fault_are_kept(sqlite_bench):
    """Fault 11: a transform writes what came before, in order, and its report says what is missing."""
    bench = sqlite_bench
    out = bench.folder / "out"
    numbers = {name: _submit(bench, "transform", name, output_uri=f"{out}/{name}/") for name in PAYLOADS}
    bench.worker(serving={"max_batch_rows": 500}).wait_ready()
    bench.wait_ended()
    for name in numbers:
        written = [p for p in (out / name).rglob("*.out") if p.is_file()]
        values = [float(line) for p in sorted(written) for line in p.read_text().splitlines()]
        assert len(values) > 500, name
        first = [2.0 * n + 1 for n in range(FIRST, FIRST + ROWS)]
        # What a spoilt stream unpacks to is known to be wrong only by its checksum, at its end.
        kept = len(first) // 2 if name.startswith("spoilt") else min(len(values), len(first))
        assert values[:kept] == first[:kept], name
        assert '"objects_broken": 1' in (out / name / "_report.json").read_text()
    bench.tally()
