"""``headrace up`` with a model, used over sockets by the client and by the command."""

import json
import sqlite3

import httpx
import pytest

from headrace.core.errors import (
    ConfigError,
    JobNotFoundError,
    JobStateError,
    ModelNotFoundError,
    OutputTakenError,
    QueueFullError,
)
from headrace.jobs.client import Client, ClientSettings
from headrace.jobs.client.messages import INLINE_BYTES_MAX
from headrace.jobs.state import JobState
from integration.command import headrace
from integration.jobs_process import WAIT_S, UpProcess, wait_completed, wait_for_state

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
    with UpProcess(folder, "model.py", *places, environ=s3_server.environ) as opened:
        opened.folder = folder
        yield opened.wait_until_ready()


@pytest.fixture
def client(up):
    with up.client() as opened:
        yield opened


@pytest.fixture
def release(up):
    """A callable that releases the jobs with a negative number, which wait until then."""
    go = up.folder / "go"
    go.unlink(missing_ok=True)
    yield go.touch
    go.touch()


def outputs(data):
    return json.loads(data)["outputs"][0]["data"]


def test_client_submits_json_and_reads_the_result(client):
    job = client.submit("model", request(1, 2, 3))
    assert wait_completed(client, job.id).result.content_type == "application/json"
    assert outputs(client.result(job.id)) == [2, 4, 6]


def test_command_submits_json_and_files_and_prints_results(up, tmp_path):
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


def test_large_file_is_uploaded(client, tmp_path):
    rows = tmp_path / "rows.csv"
    # Larger than an inline payload, but of few rows.
    rows.write_text(f"1.25{'0' * 68},0\n" * 20_000)
    assert rows.stat().st_size > INLINE_BYTES_MAX
    job = client.submit("model", rows)
    assert wait_completed(client, job.id).progress.done == 20_000
    assert client.result(job.id) == b"2.5\n" * 20_000


def test_result_of_an_object_is_published_below_the_output_prefix(client, s3_server, bucket):
    s3 = s3_server.client()
    s3.put_object(Bucket=bucket, Key="in/a.csv", Body=b"1,0\n2,0\n")
    s3.put_object(Bucket=bucket, Key="in/bad.csv", Body=b"no,numbers\n")
    named = {"output_uri": f"s3://{bucket}/out/", "content_type": "text/csv"}
    good = client.submit("model", input_uri=f"s3://{bucket}/in/a.csv", key="a", **named)
    bad = client.submit("model", input_uri=f"s3://{bucket}/in/bad.csv", key="b", attempts_max=1, **named)
    done = wait_completed(client, good.id)
    published = s3.get_object(Bucket=bucket, Key="out/a.out")
    assert published["Body"].read() == client.result(good.id) == b"2.0\n4.0\n"
    assert published["Metadata"] == {"headracejob": good.id, "headracedigest": done.result.digest}
    with pytest.raises(OutputTakenError, match=good.id):
        client.submit("model", input_uri=f"s3://{bucket}/in/a.csv", key="a", **named)
    s3.put_object(Bucket=bucket, Key="out/a.out", Body=b"changed")
    assert client.check_published(good.id)["status"] == "different"
    assert client.result(good.id) == b"2.0\n4.0\n"
    again = client.submit("model", input_uri=f"s3://{bucket}/in/a.csv", key="a", if_exists="replace", **named)
    wait_completed(client, again.id)
    assert client.check_published(again.id)["status"] == "equal"
    assert client.check_published(good.id)["found_job_id"] == again.id
    assert client.wait(bad.id, WAIT_S).state is JobState.FAILED
    assert wait_for_object(s3, bucket, "out/a.out") == b"2.0\n4.0\n"
    document = json.loads(wait_for_object(s3, bucket, "out/b.error"))
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


def test_start_names_the_limit_of_waiting_jobs(up):
    assert "waiting jobs: at most 10,000 (--pending-max)" in up.log


def test_command_submits_an_object_and_names_the_option_for_a_refused_one(up, s3_server, bucket):
    s3_server.client().put_object(Bucket=bucket, Key="in/day.csv", Body=b"1,0\n2,0\n")
    submit = ("submit", "--model", "model", "--server", up.url)
    done = headrace(*submit, f"s3://{bucket}/in/day.csv", "--output-uri", f"s3://{bucket}/out/", "--wait")
    assert (done.code, done.out) == (0, "2.0\n4.0\n"), done.err
    refused = headrace(*submit, f"s3://{bucket}/day.csv", "--output-uri", f"s3://{bucket}/out/")
    assert refused.code == 1
    assert f"permitted inputs: 's3://{bucket}/in': start headrace up with --allow-input s3://{bucket}/" in (
        refused.err
    )
    refused = headrace(*submit, f"s3://{bucket}/in/day.csv", "--output-uri", f"s3://{bucket}/")
    assert f"start headrace up with --allow-output s3://{bucket}/" in refused.err


def wait_for_object(s3, bucket, key):
    """Return an object that is published soon after its job's end."""
    s3.get_waiter("object_exists").wait(
        Bucket=bucket, Key=key, WaiterConfig={"Delay": 0.05, "MaxAttempts": 400}
    )
    return s3.get_object(Bucket=bucket, Key=key)["Body"].read()


def assert_refused(url, **document):
    response = httpx.post(f"{url}/v1/jobs", json=document, trust_env=False)
    assert response.status_code in (400, 403), response.text


def test_manifest_in_a_payload_is_refused(up, client, tmp_path):
    """headrace would read a manifest with its own permissions."""
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


def test_long_poll_ends_with_the_job(client, release):
    job = client.submit("model", HELD)
    wait_for_state(client, job.id, JobState.RUNNING)
    early = httpx.get(f"{client.base}/v1/jobs/{job.id}", params={"wait": 0.2}, trust_env=False).json()
    assert early["state"] == "running"
    release()
    late = httpx.get(f"{client.base}/v1/jobs/{job.id}", params={"wait": 30}, timeout=40, trust_env=False)
    assert late.json()["state"] == "completed"


def test_events_have_every_state_and_end_with_the_job(client, release):
    job = client.submit("model", HELD)
    seen = []
    for now in client.events(job.id):
        seen.append(now.state)
        if now.state is JobState.RUNNING:
            release()
    assert seen[-2:] == [JobState.RUNNING, JobState.COMPLETED]


def test_running_job_is_cancelled_and_retried(client, release):
    job = client.submit("model", HELD)
    wait_for_state(client, job.id, JobState.RUNNING)
    client.cancel(job.id)
    assert client.wait(job.id, WAIT_S).state is JobState.CANCELLED
    with pytest.raises(JobStateError):
        client.result(job.id)
    # The instance whose call was cancelled has restarted.
    other = client.submit("model", request(7))
    wait_completed(client, other.id)
    release()
    assert client.retry(job.id).state is JobState.PENDING
    wait_completed(client, job.id)
    assert outputs(client.result(job.id)) == [-2]
    client.delete(job.id)
    with pytest.raises(JobNotFoundError):
        client.get(job.id)


def test_full_queue_refuses_with_a_retry_time(up, client):
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


def test_unknown_model_is_refused_and_an_unserved_queue_is_a_warning(client):
    with pytest.raises(ModelNotFoundError, match=r"did you mean model\?.*known models: model$"):
        client.submit("models", request(1))
    job = client.submit("model", request(1), queue="nobody")
    assert "no worker has served queue nobody" in job.warnings[0]
    client.cancel(job.id)
    assert client.submit("model@1", request(1)).warnings == ()


def test_models_are_served_too(up):
    response = httpx.post(f"{up.urls['rest']}/v2/models/model/infer", json=request(4), trust_env=False)
    assert outputs(response.content) == [8]


def test_sigterm_gives_running_jobs_back_and_a_new_process_runs_them(tmp_path):
    with (
        UpProcess(tmp_path, "model.py", "--drain-grace-s", "0.2") as first,
        first.wait_until_ready().client() as client,
    ):
        done = client.submit("model", request(1))
        wait_completed(client, done.id)
        job = client.submit("model", HELD, attempts_max=1)
        wait_for_state(client, job.id, JobState.RUNNING)
        assert first.terminate() == 0
    assert rows(tmp_path, "SELECT state FROM headrace_job WHERE id = ?", job.id) == [("pending",)]
    (tmp_path / "go").touch()
    with UpProcess(tmp_path, "model.py") as second, second.wait_until_ready().client() as client:
        wait_completed(client, job.id)
        assert outputs(client.result(done.id)) == [2]
        # A drain is no failure: it does not count as an attempt.
        assert client.get(job.id).attempt == 1


def rows(folder, statement, *values):
    connection = sqlite3.connect(folder / "headrace-data" / "jobs.db")
    try:
        return connection.execute(statement, values).fetchall()
    finally:
        connection.close()


def test_kill_and_restart_lose_no_job(tmp_path):
    with (
        UpProcess(tmp_path, "model.py", "--concurrency", "4") as first,
        first.wait_until_ready().client() as client,
    ):
        done = [client.submit("model", request(number)) for number in range(5)]
        for job in done:
            wait_completed(client, job.id)
        held = [client.submit("model", HELD) for _ in range(2)]
        wait_for_state(client, held[0].id, JobState.RUNNING)
        client.pause_queue("later")
        waiting = [client.submit("model", request(9), queue="later") for _ in range(5)]
        first.kill()
    (tmp_path / "go").touch()
    queues = ("--queue", "default", "--queue", "later")
    with UpProcess(tmp_path, "model.py", *queues) as second, second.wait_until_ready().client() as client:
        assert [outputs(client.result(job.id)) for job in done] == [[2 * n] for n in range(5)]
        assert [client.get(job.id).state for job in waiting] == [JobState.PENDING] * 5
        client.resume_queue("later")
        for job in [*held, *waiting]:
            wait_completed(client, job.id)
        assert outputs(client.result(held[0].id)) == [-2]
