"""``headrace workers`` against a real job API."""

from dataclasses import replace

import pytest

from cli.job_commands import run_command
from headrace.jobs.worker_registry import GpuMemory, ModelCrash, WorkerInfo, WorkerReport
from jobs.service_support import LEASE_MS, served_jobs
from server.jobs.test_job_routes import submit

INFO = WorkerInfo("gpu-1", "s", "host-1", 42, "1.2.3", ("default",), ("m", "m@1", "n"), 4)
REPORT = WorkerReport(
    memory_bytes=3_000_000_000,
    gpus=(GpuMemory(0, "A GPU", 1_000_000_000, 80_000_000_000),),
    last_crash=ModelCrash("m", "oom", "its process was killed", 0),
)


@pytest.fixture
def served():
    with served_jobs() as made:
        yield made


def cells(line):
    return [cell for cell in line.split("  ") if cell]


def test_workers_are_listed(served):
    none = run_command(served, "workers")
    assert (none.code, none.out) == (0, "")
    assert "no workers" in none.err
    served.ledger.register_worker(INFO, REPORT)
    many = replace(INFO, name="host-2-77", models=tuple("abcde"), queues=())
    served.ledger.register_worker(many, WorkerReport(ready=False))
    served.ledger.end_worker("host-2-77")
    head, first, second = run_command(served, "workers").out.splitlines()
    assert head.split()[:5] == ["name", "state", "host", "version", "slots"]
    row = " ".join(first.split())
    assert row.startswith("gpu-1 running host-1 1.2.3 0/4 default m, n 3.0 GB 1.0 GB of 80.0 GB")
    assert "m oom, " in row
    assert " ".join(second.split()).startswith(
        "host-2-77 stopped, not ready host-1 1.2.3 0/4 - a, b, c +2 - -"
    )
    assert [line["name"] for line in run_command(served, "workers", "list", "--json").lines] == [
        "gpu-1",
        "host-2-77",
    ]


def test_worker_is_shown_drained_and_resumed(served):
    served.ledger.register_worker(replace(INFO, name="worker-1", lease_ms=LEASE_MS), REPORT)
    with served.client() as http:
        job_id = submit(http)["id"]
    served.claim()
    drained = run_command(served, "workers", "drain", "worker-1", "other")
    assert (drained.code, drained.out) == (1, "worker-1  draining, 1 running\n")
    assert "no worker 'other'" in drained.err
    shown = dict(
        line.split(maxsplit=1) for line in run_command(served, "workers", "show", "worker-1").out.splitlines()
    )
    assert (shown["state"], shown["jobs"], shown["slots"]) == ("draining", job_id, "1 of 4 in use")
    assert shown["gpus"] == "0: A GPU, 1.0 GB of 80.0 GB"
    assert shown["last"].endswith("its process was killed")
    (document,) = run_command(served, "workers", "show", "worker-1", "--json").lines
    assert document["draining"] is True
    assert run_command(served, "workers", "undrain", "worker-1").out == "worker-1  running, 1 running\n"
    assert run_command(served, "workers", "undrain", "worker-1", "--json").lines[0]["state"] == "running"
