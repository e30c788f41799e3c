"""The synchronous and the asynchronous client against a real API."""

import asyncio
import itertools
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from cases import for_each
from headrace.core import errors
from headrace.jobs import AsyncClient, Client, ClientSettings
from headrace.jobs.job import JobFailure, JobProgress
from headrace.jobs.state import Cause, JobState
from jobs.service_support import WAIT_S, key_of, served_jobs

_numbers = itertools.count()
BIG = bytes(range(256)) * (8 << 10)  # 2 MiB: uploaded before the submission


class BlockingAsyncClient:
    """An `AsyncClient` with the blocking methods of `Client`."""

    def __init__(self, url, **options):
        self._runner = asyncio.Runner()
        try:
            self._client = self._runner.run(self._open(url, options))
        except BaseException:
            self._runner.close()
            raise

    async def _open(self, url, options):
        return AsyncClient(url, **options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._runner.run(self._client.close())
        self._runner.close()

    def __getattr__(self, name):
        method = getattr(self._client, name)

        def call(*args, **options):
            result = method(*args, **options)
            return self._runner.run(result) if asyncio.iscoroutine(result) else self._all(result)

        return call

    def _all(self, values):
        while True:
            try:
                yield self._runner.run(anext(values))
            except StopAsyncIteration:
                return


@pytest.fixture(scope="module")
def served():
    """Serve one API for all tests. Each test uses its own queues and keys."""
    with served_jobs() as served:
        yield served


@pytest.fixture
def queue():
    return f"queue-{next(_numbers)}"


@pytest.fixture(params=[Client, BlockingAsyncClient], ids=["sync", "async"])
def kind(request):
    return request.param


@pytest.fixture
def client(served, kind):
    with kind(served.url, settings=ClientSettings(timeout_s=WAIT_S, retry_s=5)) as client:
        yield client


@for_each(
    ("source", "content_type", "payload"),
    [
        ({"x": [1, 2]}, "application/json", b'{"x":[1,2]}'),
        (b"\xff\x00", "application/octet-stream", b"\xff\x00"),
        (None, "application/json", b"null"),
        (BIG, "application/octet-stream", BIG),
    ],
)
def test_payload_arrives_unchanged(served, client, source, content_type, payload):
    job = client.submit(
        "m", source, queue="q", tags={"a": "b c"}, options={"columns": [1, 2]}, priority=2, delay_s=0.5
    )
    assert job == client.get(job.id)
    spec = job.spec
    assert (spec.model, spec.queue, spec.tags, spec.options, spec.priority) == (
        "m",
        "q",
        {"a": "b c"},
        {"columns": [1, 2]},
        2,
    )
    assert spec.content_type == content_type
    assert served.payload(job.id) == payload
    assert job.due_at_ms == job.created_at_ms + 500


def test_small_and_large_files_are_payloads(served, client, tmp_path):
    for name, data in (("a.csv", b"1,2\n"), ("b.parquet", BIG)):
        (tmp_path / name).write_bytes(data)
        job = client.submit("m", tmp_path / name)
        assert served.payload(job.id) == data
        assert job.spec.content_type == {"a.csv": "text/csv", "b.parquet": "application/x-parquet"}[name]
    with pytest.raises(errors.ConfigError, match="the file does not exist"):
        client.submit("m", tmp_path / "none.csv")


def test_existing_object_is_submitted_by_uri(client):
    assert client.submit("m", input_uri="s3://in/k.csv").spec.input_uri == "s3://in/k.csv"
    with pytest.raises(errors.ForbiddenError):
        client.submit("m", input_uri="s3://elsewhere/k")
    with pytest.raises(errors.ConfigError, match="give one of"):
        client.submit("m", 1, input_uri="s3://in/k")


def test_job_is_followed_awaited_and_fetched(served, client, queue, tmp_path):
    job = client.submit("m", 1, queue=queue)
    seen = client.events(job.id)
    assert next(seen).state is JobState.PENDING
    run = served.claim(queue)
    assert next(seen).state is JobState.RUNNING
    served.report_progress(run, JobProgress(1, 2, "rows"))
    assert next(seen).progress == JobProgress(1, 2, "rows")
    served.complete(run, BIG)
    assert [job.state for job in seen] == [JobState.COMPLETED]
    assert client.wait(job.id, 1).result.size_bytes == len(BIG)
    assert client.result(job.id) == BIG
    assert client.save_result(job.id, tmp_path / "out") == len(BIG)
    assert (tmp_path / "out").read_bytes() == BIG
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_errors_are_headrace_errors(served, client, queue):
    key = f"key-of-{queue}"
    job = client.submit("m", 1, idempotency_key=key)
    with pytest.raises(errors.JobNotFoundError) as missing:
        client.get("01a2007b-0000-7000-8000-000000000000")
    assert missing.value.job_id == "01a2007b-0000-7000-8000-000000000000"
    with pytest.raises(errors.IdempotencyError) as other:
        client.submit("m", 2, idempotency_key=key)
    assert (other.value.job_id, other.value.key) == (job.id, key)
    with pytest.raises(errors.JobStateError) as early:
        client.result(job.id)
    assert early.value.state == "pending"
    with pytest.raises(errors.DataError, match="priority"):
        client.submit("m", 1, priority=11)
    with pytest.raises(errors.JobNotFoundError):
        client.get("../queues")
    with pytest.raises(errors.DeadlineError, match="is pending after"):
        client.wait(job.id, 0.01)


def test_failed_jobs_are_listed_retried_and_deleted(served, client, queue):
    jobs = [client.submit("m", n, queue=queue, tags={"n": str(n)}) for n in range(3)]
    served.fail(served.claim(queue), JobFailure(Cause.MODEL, "it raised", "ValueError"))
    (failed,) = client.list(queue=queue, states=["failed"])
    assert failed.failure == JobFailure(Cause.MODEL, "it raised", "ValueError")
    assert {job.id for job in client.list(queue=queue)} == {job.id for job in jobs}
    assert [job.id for job in client.list(queue=queue, tags={"n": "2"})] == [jobs[2].id]
    assert [entry.event for entry in client.history(failed.id)] == ["claimed", "attempt_failed", "failed"]
    assert client.retry(failed.id).state is JobState.PENDING
    assert client.cancel(failed.id).state is JobState.CANCELLED
    client.delete(failed.id)
    with pytest.raises(errors.JobNotFoundError):
        client.delete(failed.id)


def test_queues_are_read_and_changed(client, queue):
    client.submit("m", 1, queue=queue)
    assert client.pause_queue(queue)["paused"]
    assert client.drain_queue(queue)["draining"]
    with pytest.raises(errors.QueueClosedError):
        client.submit("m", 1, queue=queue)
    assert not client.resume_queue(queue)["paused"]
    assert client.bound_queue(queue, 1)["pending_max"] == 1
    scale = client.scale(queue)
    assert (scale["desired"], scale["reason"]) == (1, "1 due and 0 running jobs, 1 for each worker")
    assert queue in [each["queue"] for each in client.queues()]
    assert client.queue(queue)["queued"] == 1
    with pytest.raises(errors.QueueInUseError, match=f"queue {queue} has unfinished jobs"):
        client.delete_queue(queue)
    (job,) = client.list(queue=queue)
    client.cancel(job.id)
    client.delete_queue(queue)
    assert queue not in [each["queue"] for each in client.queues()]
    client.delete_queue(queue)


@pytest.mark.slow  # the API says to retry after a second
def test_full_queue_is_retried_until_it_accepts_the_job(served, client, queue, monkeypatch):
    first = client.submit("m", 1, queue=queue)
    client.bound_queue(queue, 1)
    submit = served.ledger.submit

    def cancel_after_refusal(jobs):
        replies = submit(jobs)
        if isinstance(replies[0], errors.QueueFullError):
            served.ledger.cancel(first.id)
        return replies

    monkeypatch.setattr(served.ledger, "submit", cancel_after_refusal)
    assert client.submit("m", 1, queue=queue).state is JobState.PENDING
    assert served.ledger.get(first.id).state is JobState.CANCELLED


def test_unreachable_api_is_an_error_after_retry_s(kind):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with (
            kind(url, settings=ClientSettings(retry_s=0.05)) as client,
            pytest.raises(errors.EndpointUnavailableError, match=url),
        ):
            client.submit("m", 1)


@for_each("url", ["localhost:1", "ftp://h", "http://user:pw@h", "", "http://[::"])
def test_invalid_address_is_refused(kind, url):
    with pytest.raises(errors.ConfigError):
        kind(url)


def test_key_is_sent_to_the_api(kind):
    text, digest, job_key = key_of("shop")
    with served_jobs(keys=[(text, digest, job_key)]) as guarded:
        with kind(guarded.url) as stranger, pytest.raises(errors.UnauthenticatedError):
            stranger.get("x")
        with kind(guarded.url, api_key=text) as client:
            assert client.submit("m", 1).spec.tenant == "shop"
            assert client.submit("m", BIG).spec.tenant == "shop"


def test_importing_jobs_imports_no_client():
    program = (
        "import sys, headrace.jobs; print('httpx' in sys.modules, 'headrace.jobs.client' in sys.modules)"
    )
    imported = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert imported.split() == ["False", "False"]


# Fault 3: the API is killed between its commit and its response

_SERVER = """
import os, signal, sys
from jobs.service_support import served_jobs
from headrace.jobs.ledgers.sqlite import SqliteJobLedger
from headrace.storage import Stores
from headrace.server.jobs.api import Api

folder, port, dies = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "dies"
submit = Api.submit

async def submit_then_die(*args, **kwargs):
    reply = await submit(*args, **kwargs)
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    return reply

Api.submit = submit_then_die
import headrace.server.listen as listen
bind_socket = listen.bind_socket
listen.bind_socket = lambda host, _: bind_socket(host, port)
with served_jobs(ledger=SqliteJobLedger(folder + "/jobs.db"), store_uri=folder + "/store") as served:
    print("ready", flush=True)
    sys.stdin.read()
"""


def _api(folder: Path, port: int, mode: str):
    root = Path(__file__).parents[3]
    environ = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root / 'tests'}"}
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_SERVER), str(folder), str(port), mode],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, text=True,
    )  # fmt: skip
    assert process.stdout.readline().strip() == "ready"
    return process


@pytest.mark.slow
def test_fault_03_submission_with_a_lost_response_makes_one_job(kind, tmp_path):
    # The API is killed after its commit. The client repeats the request with the same key.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    dying = _api(tmp_path, port, "dies")
    seen = {}

    def submit():
        with kind(f"http://127.0.0.1:{port}", settings=ClientSettings(retry_s=30)) as client:
            seen["job"] = client.submit("m", [1, 2])
            seen["all"] = [job.id for job in client.list()]

    thread = threading.Thread(target=submit)
    thread.start()
    assert dying.wait(WAIT_S) == -signal.SIGKILL
    dying.stdin.close()
    dying.stdout.close()
    restarted = _api(tmp_path, port, "lives")
    thread.join(WAIT_S)
    restarted.communicate("", timeout=WAIT_S)
    assert seen["all"] == [seen["job"].id]
    # The API has removed the payload of the second submission.
    assert len(list((tmp_path / "store" / "inputs").iterdir())) == 1
