"""The jobs example, run as its page describes: API, worker and receiver as processes, with real
files.
"""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.jobs import Client
from headrace.jobs.notify import make_secret
from headrace.jobs.state import JobState
from servers.served import WAIT_S

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "jobs"
FILES = {
    "aws.py": (ROOT / "src" / "headrace" / "jobs" / "aws.py").read_bytes(),
    "page.md": (ROOT / "README.md").read_bytes(),
    "rows.json": json.dumps({"rows": [{"a": i, "b": None} for i in range(30)]}, indent=1).encode(),
}
SECRET = make_secret()


@contextmanager
def running(*command: object, until: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a process, wait for a line that matches `until`, and yield the process and the line's
    first group.
    """
    process = subprocess.Popen(
        [sys.executable, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    found, said = "", []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if match := re.match(until, line):
                found = match[1]
                break
        assert found, f"it ended: {''.join(said)}"
        yield process, found
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)


@pytest.fixture
def receiver():
    with running(EXAMPLE / "receiver.py", 0, SECRET, until=r"(http://\S+)") as (process, url):
        yield process, url


@pytest.fixture
def server(tmp_path, receiver):
    settings = tmp_path / "jobs.toml"
    port = receiver[1].rpartition(":")[2].strip("/")
    settings.write_text((EXAMPLE / "jobs.toml").read_text().replace("8095", port))
    up = ["-m", "headrace", "up", ROOT / "examples" / "serving" / "file-type", "--config", settings]
    where = ["--data", tmp_path / "data", "--port", 0, "--no-serve", "--no-metrics"]
    with running(*up, *where, until=r"jobs\s+(\S+)") as (_, url):
        yield url


def test_a_folder_is_labelled_and_the_receiver_is_told_of_each_file(tmp_path, server, receiver):
    folder = tmp_path / "files"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    (folder / "short.txt").write_bytes(b"abc")
    process, webhook = receiver
    given = [folder, "--server", server, "--webhook", webhook, "--secret", SECRET]
    done = subprocess.run(
        [sys.executable, EXAMPLE / "label_folder.py", *given],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert {name: lines[name].split()[0] for name in FILES} == {
        "aws.py": "python",
        "page.md": "markdown",
        "rows.json": "json",
    }
    assert "bytes are too few to detect a kind" in lines["short.txt"]
    assert (done.returncode, done.stderr) == (1, "")
    with Client(server) as client:
        ended = {job.id: job.state for job in client.list()}
    told = [process.stdout.readline().split()[:2] for _ in ended]
    assert {job_id: kind for kind, job_id in told} == {
        job_id: f"job.{state.value}" for job_id, state in ended.items()
    }
    assert sorted(ended.values()) == [JobState.COMPLETED] * 3 + [JobState.FAILED]


def test_a_receiver_takes_nothing_that_is_not_signed(receiver):
    import httpx

    assert httpx.post(receiver[1], content=b'{"type": "job.completed", "data": {}}').status_code == 401
