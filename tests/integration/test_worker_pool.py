"""Pools of workers as commands: `headrace up`, `headrace work` and `headrace scale` with ``--workers``."""

import shlex
import sys

import psutil
import pytest

from headrace.jobs.job import NewJob
from headrace.jobs.ledgers import open_ledger
from headrace.jobs.state import JobState
from integration.jobs_process import MODEL, CommandProcess, UpProcess, wait_completed, wait_for_state
from servers.polling import wait_until

pytestmark = pytest.mark.slow

HELD = {"x": [[-1, 0]]}
AT_ONCE = """
[pools.local]
interval_s = 60
"""
"""Settings with which only new jobs cause decisions."""
BACK_SOON = """
[pools.local]
interval_s = 0.3
scale_in_window_s = 1
"""


def workers_of(process):
    """Return the worker processes of a command."""
    return [child.pid for child in psutil.Process(process.pid).children()]


def decisions(client):
    """Return the decisions about the only pool, the first one first."""
    (pool,) = client.pools()
    return list(client.decisions(pool["pool"]))[::-1]


def numbers(client):
    """Return the workers and the wanted workers of all decisions."""
    return [(decision["workers"], decision["wanted"]) for decision in decisions(client)]


def test_first_job_starts_a_worker_and_interrupted_command_ends_it(tmp_path):
    (tmp_path / "jobs.toml").write_text(AT_ONCE)
    arguments = ("model.py", "--workers", "0..2", "--concurrency", "1", "--config", "jobs.toml")
    with UpProcess(tmp_path, *arguments) as up, up.wait_until_ready().client() as client:
        assert workers_of(up) == []
        assert "rest" not in up.urls, "the models are loaded in the workers only"
        jobs = [client.submit("model", HELD).id for _ in range(2)]
        for job in jobs:
            wait_for_state(client, job, JobState.RUNNING)
        workers = workers_of(up)
        assert len(workers) == 2
        (tmp_path / "go").touch()
        for job in jobs:
            wait_completed(client, job)
        assert numbers(client)[-1][1] == 2
        assert up.terminate() == 0
        assert not any(map(psutil.pid_exists, workers))


def test_idle_workers_end_and_the_list_shows_the_pool(tmp_path):
    (tmp_path / "jobs.toml").write_text(BACK_SOON)
    arguments = ("model.py", "--workers", "0..2", "--concurrency", "4", "--config", "jobs.toml")
    with UpProcess(tmp_path, *arguments) as up, up.wait_until_ready().client() as client:
        wait_completed(client, client.submit("model", {"x": [[2, 0]]}).id)
        wait_until(lambda: not workers_of(up), "no worker")
        wait_until(lambda: numbers(client) == [(0, 0), (0, 1), (1, 0)], "the last decision")
        (pool,) = client.pools()
        assert pool["pool"].startswith("local-")
        assert pool["controlled"]
        assert pool["decision"]["wanted"] == 0


def test_worker_that_cannot_start_is_in_the_history(tmp_path):
    arguments = ("missing.py", "--workers", "0..2")
    with UpProcess(tmp_path, *arguments) as up, up.wait_until_ready().client() as client:
        client.submit("missing", {"x": [[2, 0]]})
        wait_until(lambda: "not done" in decisions(client)[-1]["reason"], "the failure")
        assert any("missing.py" in line for line in up.log)


def test_command_receives_the_wanted_number(tmp_path):
    calls = tmp_path / "calls"
    program = f"import sys; open({str(calls)!r}, 'a').write(sys.argv[1] + chr(10))"
    command = shlex.join([sys.executable, "-c", program, "{workers}"])
    (tmp_path / "model.py").write_text(MODEL)
    arguments = ("scale", "--workers", "0..3", "--slots", "2", "--interval-s", "0.3", "--command", command)
    ledger = open_ledger(f"sqlite:///{tmp_path / 'headrace-data' / 'jobs.db'}")
    (tmp_path / "headrace-data").mkdir()
    ledger.start()
    with CommandProcess(tmp_path, *arguments) as scale:
        scale.wait_until_ready()
        wait_until(calls.exists, "the first call")
        ledger.submit([NewJob("m", input_uri="mem://x") for _ in range(5)])
        wait_until(lambda: calls.read_text().split() == ["0", "3"], "the second call")
        assert scale.terminate() == 0
    ledger.stop()
