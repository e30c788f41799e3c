"""``headrace up`` with a model, as somebody uses it who has just installed it: over sockets, by client and by command."""

import json
import sqlite3

import httpx
import pytest

from headrace.core.errors import ConfigError, JobNotFoundError, JobStateError, QueueFullError
from headrace.jobs.client import Client
from headrace.jobs.client.faces import ClientSettings
from headrace.jobs.client.orders import INLINE_BYTES_MAX
from headrace.jobs.state import JobState
from integration.command import headrace
from integration.jobs_process import WAIT_S, Up, completed, until

HELD = {"inputs": [{"name": "x", "datatype": "FP64", "shape": [1, 2], "data": [-1, 0]}]}


def request(*numbers):
    data = [value for number in numbers for value in (number, 0)]
    return {"inputs": [{"name": "x", "datatype": "FP64", "shape": [len(numbers), 2], "data": data}]}


@pytest.fixture(scope="module")
def bucket(s3_server):
    return s3_server.bucket()


@pytest.fixture(scope="module")
def up(tmp_path_factory, s3_server, bucket):
    folder = tmp_path_factory.mktemp("up")
    places = ("--allow-input", f"s3://{bucket}/in", "--allow-output", f"s3://{bucket}/out")
    with Up(folder, "model.py", *places, environ=s3_server.environ) as made:
        made.folder = folder
        yield made.wait_until_ready()


@pytest.fixture
def client(up):
    with up.client() as made:
        yield made


@pytest.fixture
def held(up):
    """Jobs with a negative number wait until this is called."""
    go = up.folder / "go"
    go.unlink(missing_ok=True)
    yield go.touch
    go.touch()


def outputs(data):
    return json.loads(data)["outputs"][0]["data"]


def test_json_submitted_by_the_client_comes_back_as_a_result(client):
    job = client.submit("model", request(1, 2, 3))
    assert completed(client, job.id).result.content_type == "application/json"
    assert outputs(client.result(job.id)) == [2, 4, 6]


def test_the_command_submits_json_and_files_and_prints_results(up, tmp_path):
    server = ("--server", up.url)
    done = headrace("submit", "--input", json.dumps(request(5)), "--model", "model", "--wait", *server)
    assert (done.code, outputs(done.out)) == (0, [10])
    rows = tmp_path / "rows.csv"
    rows.write_text("1,0\n2,0\noops,0\n4,0\n")
    saved = tmp_path / "scores.csv"
    done = headrace("submit", rows, "--model", "model", "--wait", "-o", saved, *server)
    assert done.code == 0, done.err
    assert saved.read_text() == "2.0\n4.0\n8.0\n"
    assert "1 records failed" in done.err


def test_a_large_file_is_uploaded(client, tmp_path):
    rows = tmp_path / "rows.csv"
    # More than goes with a submission, of few rows: the model takes four at a time.
    rows.write_text(f"1.25{'0' * 68},0\n" * 20_000)
    assert rows.stat().st_size > INLINE_BYTES_MAX
    job = client.submit("model", rows)
    assert completed(client, job.id).progress.done == 20_000
    assert client.result(job.id) == b"2.5\n" * 20_000


def test_an_object_in_a_bucket_comes_back_below_the_output_prefix(client, s3_server, bucket):
    s3 = s3_server.client()
    s3.put_object(Bucket=bucket, Key="in/a.csv", Body=b"1,0\n2,0\n")
    s3.put_object(Bucket=bucket, Key="in/bad.csv", Body=b"no,numbers\n")
    named = {"output_uri": f"s3://{bucket}/out/", "content_type": "text/csv"}
    good = client.submit("model", input_uri=f"s3://{bucket}/in/a.csv", key="a", **named)
    bad = client.submit("model", input_uri=f"s3://{bucket}/in/bad.csv", key="b", attempts_max=1, **named)
    completed(client, good.id)
    assert client.result(good.id) == b"2.0\n4.0\n"
    assert client.wait(bad.id, WAIT_S).state is JobState.FAILED
    assert waited_for(s3, bucket, "out/a.out") == b"2.0\n4.0\n"
    document = json.loads(waited_for(s3, bucket, "out/b.error"))
    assert (document["job"], document["state"]) == (bad.id, "failed")
    for place in (
        f"s3://{bucket}/elsewhere/a.csv",
        "s3://other/in/a.csv",
        "/etc/passwd",
        "http://127.0.0.1/a",
    ):
        assert_refused(client.base, model="model", input_uri=place)
    assert_refused(
        client.base,
        model="model",
        input_uri=f"s3://{bucket}/in/a.csv",
        output_uri=f"s3://{bucket}/elsewhere/",
    )


def waited_for(s3, bucket, key):
    """An object that is published soon after its job has ended."""
    s3.get_waiter("object_exists").wait(
        Bucket=bucket, Key=key, WaiterConfig={"Delay": 0.05, "MaxAttempts": 400}
    )
    return s3.get_object(Bucket=bucket, Key=key)["Body"].read()


def assert_refused(url, **document):
    answer = httpx.post(f"{url}/v1/jobs", json=document, trust_env=False)
    assert answer.status_code in (400, 403), answer.text


def test_what_a_payload_says_opens_no_file_of_the_server(up, client, tmp_path):
    """A list of objects is read by whoever lists them; here that is anybody."""
    secret = tmp_path / "secret.csv"
    secret.write_text("1,0\n")
    for options in (
        {"data_type": "manifest"},
        {
            "TransformInput": {
                "DataSource": {"S3DataSource": {"S3DataType": "ManifestFile", "S3Uri": "s3://b/m"}}
            }
        },
    ):
        with pytest.raises(ConfigError, match="never a manifest"):
            client.submit("model", str(secret), content_type="text/csv", options=options)


def test_a_long_poll_ends_with_the_job(client, held):
    job = client.submit("model", HELD)
    until(client, job.id, JobState.RUNNING)
    early = httpx.get(f"{client.base}/v1/jobs/{job.id}", params={"wait": 0.2}, trust_env=False).json()
    assert early["state"] == "running"
    held()
    late = httpx.get(f"{client.base}/v1/jobs/{job.id}", params={"wait": 30}, timeout=40, trust_env=False)
    assert late.json()["state"] == "completed"


def test_events_tell_every_state_and_then_end(client, held):
    job = client.submit("model", HELD)
    seen = []
    for now in client.events(job.id):
        seen.append(now.state)
        if now.state is JobState.RUNNING:
            held()
    assert seen[-2:] == [JobState.RUNNING, JobState.COMPLETED]


def test_a_running_job_is_cancelled_and_tried_again(client, held):
    job = client.submit("model", HELD)
    until(client, job.id, JobState.RUNNING)
    client.cancel(job.id)
    assert client.wait(job.id, WAIT_S).state is JobState.CANCELLED
    with pytest.raises(JobStateError):
        client.result(job.id)
    # The instance whose call nobody wanted any more is back.
    other = client.submit("model", request(7))
    completed(client, other.id)
    held()
    assert client.retry(job.id).state is JobState.PENDING
    completed(client, job.id)
    assert outputs(client.result(job.id)) == [-2]
    client.delete(job.id)
    with pytest.raises(JobNotFoundError):
        client.get(job.id)


def test_a_full_queue_says_when_to_come_again(up, client):
    client.pause_queue("small")
    client.bound_queue("small", 2)
    jobs = [client.submit("model", request(1), queue="small") for _ in range(2)]
    with (
        Client(up.url, settings=ClientSettings(retry_s=0)) as impatient,
        pytest.raises(QueueFullError) as refused,
    ):
        impatient.submit("model", request(1), queue="small")
    assert refused.value.retry_after_s > 0
    assert client.scale("small")["backlog"] == 2
    assert client.scale("small")["desired"] == 1
    for job in jobs:
        assert client.cancel(job.id).state is JobState.CANCELLED
    assert client.scale("small")["desired"] == 0


def test_a_model_that_is_not_here_is_told_with_those_that_are(client):
    job = client.submit("nothing", request(1), attempts_max=1)
    failed = client.wait(job.id, WAIT_S)
    assert failed.state is JobState.FAILED
    assert "it has model" in failed.failure.message


def test_its_models_are_served_too(up):
    answer = httpx.post(f"{up.doors['rest']}/v2/models/model/infer", json=request(4), trust_env=False)
    assert outputs(answer.content) == [8]


def test_sigterm_gives_back_what_runs_and_a_new_process_does_it(tmp_path):
    with (
        Up(tmp_path, "model.py", "--drain-grace-s", "0.2") as first,
        first.wait_until_ready().client() as client,
    ):
        done = client.submit("model", request(1))
        completed(client, done.id)
        job = client.submit("model", HELD, attempts_max=1)
        until(client, job.id, JobState.RUNNING)
        assert first.terminate() == 0
    assert rows(tmp_path, "SELECT state FROM headrace_job WHERE id = ?", job.id) == [("pending",)]
    (tmp_path / "go").touch()
    with Up(tmp_path, "model.py") as second, second.wait_until_ready().client() as client:
        completed(client, job.id)
        assert outputs(client.result(done.id)) == [2]
        # A drain is no failure: it took none of the job's attempts.
        assert client.get(job.id).attempt == 1


def rows(folder, statement, *given):
    connection = sqlite3.connect(folder / "headrace-data" / "jobs.db")
    try:
        return connection.execute(statement, given).fetchall()
    finally:
        connection.close()


def test_killed_and_started_again_it_has_lost_nothing(tmp_path):
    with Up(tmp_path, "model.py", "--concurrency", "4") as first, first.wait_until_ready().client() as client:
        done = [client.submit("model", request(number)) for number in range(5)]
        for job in done:
            completed(client, job.id)
        held = [client.submit("model", HELD) for _ in range(2)]
        until(client, held[0].id, JobState.RUNNING)
        client.pause_queue("later")
        waiting = [client.submit("model", request(9), queue="later") for _ in range(5)]
        first.kill()
    (tmp_path / "go").touch()
    queues = ("--queue", "default", "--queue", "later")
    with Up(tmp_path, "model.py", *queues) as second, second.wait_until_ready().client() as client:
        assert [outputs(client.result(job.id)) for job in done] == [[2 * n] for n in range(5)]
        assert [client.get(job.id).state for job in waiting] == [JobState.PENDING] * 5
        client.resume_queue("later")
        for job in [*held, *waiting]:
            completed(client, job.id)
        assert outputs(client.result(held[0].id)) == [-2]
