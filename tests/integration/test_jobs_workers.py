"""Workers in processes of their own, over PostgreSQL, S3 and Valkey; killed workers lose no job."""

import random

import pytest

import levels
from headrace.jobs.job import KINDS, Job
from headrace.jobs.state import JobState
from integration.jobs_process import MODEL, WAIT_S, CommandProcess, UpProcess, wait_for_state

JOBS = levels.by_level(20, 20, 200)


@pytest.fixture
def apart(tmp_path, postgres_url, s3_server, valkey_server):
    """The options of all processes, the bucket, and the environment."""
    bucket = s3_server.bucket()
    (tmp_path / "model.py").write_text(MODEL)
    options = (
        "--ledger", postgres_url, "--store", f"s3://{bucket}/own/", "--dispatcher", valkey_server.url,
    )  # fmt: skip
    return options, bucket, s3_server.environ


def worker(folder, options, environ, *more):
    leases = ("--lease-s", "2", "--heartbeat-s", "0.4", "--log-format", "text")
    return CommandProcess(folder, "work", "model.py", *options, *leases, *more, environ=environ)


def test_killed_worker_s_jobs_are_run_by_the_other(tmp_path, apart, s3_server):
    options, bucket, environ = apart
    s3 = s3_server.client()
    output = ("--allow-output", f"s3://{bucket}/out")
    with (
        UpProcess(tmp_path, *options, *output, environ=environ) as up,
        worker(tmp_path, options, environ, "--concurrency", "4") as one,
        worker(tmp_path, options, environ, "--concurrency", "4") as two,
    ):
        for process in (up, one, two):
            process.wait_until_ready()
        with up.client() as client:
            named = {"content_type": "text/csv", "output_uri": f"s3://{bucket}/out/"}
            # The first jobs wait in the model, so that the killed worker runs some.
            jobs = [client.submit("model", "-1,0\n", **named) for _ in range(2)]
            jobs += [client.submit("model", f"{number},0\n", **named) for number in range(2, JOBS)]
            running = wait_for_state(client, jobs[0].id, JobState.RUNNING)
            doomed, other = (one, two) if running.worker in "".join(one.log) else (two, one)
            assert any(running.worker in line for line in doomed.log)
            doomed.kill()
            (tmp_path / "go").touch()
            ended = [client.wait(job.id, WAIT_S) for job in jobs]
            assert {job.state for job in ended} == {JobState.COMPLETED}
            assert [client.result(job.id) for job in jobs[:3]] == [b"-2.0\n", b"-2.0\n", b"4.0\n"]
            assert ended[0].crashes == 1
            assert other.terminate() == 0
            assert up.terminate() == 0
    # Nothing but the results is published.
    left = {item["Key"] for item in s3.list_objects_v2(Bucket=bucket, Prefix="out/")["Contents"]}
    assert left <= {f"out/{job.id}.out" for job in jobs}


def test_killed_long_jobs_write_the_output_of_undisturbed_ones(tmp_path):
    """Each attempt continues after the last checkpoint, also after SIGKILL."""
    rng = random.Random(7)
    source = tmp_path / "in"
    source.mkdir()
    for name in "abcdef":
        lines = ["oops,1" if n % 97 == 5 else f"{rng.random():.6f},0" for n in range(400)]
        # The model waits in this file, until the process is killed.
        lines[300] = "-1,0" if name == "d" else lines[300]
        (source / f"{name}.csv").write_text("\n".join(lines) + "\n")
    options = {"batch_rows_max": 8, "checkpoint_s": 0, "max_failed": "100%"}
    kinds = [kind for kind in KINDS if kind != "infer"]

    def submit(client, kind: str, output: str) -> Job:
        uri = f"{tmp_path}/out/{output}/{kind}/"
        return client.submit("model", kind=kind, input_uri=f"{source}/", output_uri=uri, options=options)

    # With an instance per job, a job that waits does not block the other one.
    allowed = ("--allow-input", str(source), "--allow-output", f"{tmp_path}/out", "--instances", "2")
    with UpProcess(tmp_path, "model.py", *allowed) as first, first.wait_until_ready().client() as client:
        killed = [submit(client, kind, "killed") for kind in kinds]
        for job in killed:
            assert any(seen.progress is not None and seen.progress.done for seen in client.events(job.id))
        first.kill()
    (tmp_path / "go").touch()
    with UpProcess(tmp_path, "model.py", *allowed) as second, second.wait_until_ready().client() as client:
        undisturbed = [submit(client, kind, "undisturbed") for kind in kinds]
        ended = [client.wait(job.id, WAIT_S) for job in (*killed, *undisturbed)]
        assert [job.state for job in ended] == [JobState.COMPLETED] * 2 * len(kinds), ended
        assert [job.attempt for job in ended[: len(kinds)]] == [2] * len(kinds)
        for job in killed:
            assert b'"rows_failed"' in client.result(job.id)
    for kind in kinds:
        written = contents(tmp_path / "out" / "undisturbed" / kind)
        assert written
        assert contents(tmp_path / "out" / "killed" / kind) == written


def test_job_runs_in_another_region_only_if_allowed(tmp_path):
    """The file has the regions of data and of the worker."""
    (tmp_path / "model.py").write_text(MODEL)
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.csv").write_text("1,0\n" * 50)
    (tmp_path / "jobs.toml").write_text(
        f'[anyone]\ninputs = ["{source}"]\noutputs = ["{tmp_path}/out"]\n'
        f'[regions]\nworker = "us"\nother_regions = "never"\n[regions.data]\n"{source}/" = "eu"\n'
    )
    job = {"kind": "transform", "input_uri": f"{source}/", "output_uri": f"{tmp_path}/out/"}
    options = ("model.py", "--config", str(tmp_path / "jobs.toml"), "--isolation", "thread", "--no-serve")
    with UpProcess(tmp_path, *options) as up, up.wait_until_ready().client() as client:
        far = client.submit("model", **job)
        # With "never" the worker skips the first job and runs the second.
        near = client.wait(client.submit("model", "1,0\n", content_type="text/csv", region="us").id, WAIT_S)
        assert (near.state, near.worker_region) == (JobState.COMPLETED, "us")
        assert client.queue("default")["queued_by_region"] == {"eu": 1}
        assert up.terminate() == 0
    with (
        UpProcess(tmp_path, *options, "--other-regions", "idle") as up,
        up.wait_until_ready().client() as client,
    ):
        done = client.wait(far.id, WAIT_S)
        assert (done.state, done.spec.region, done.worker_region) == (JobState.COMPLETED, "eu", "us")
        assert done.progress.bytes_across_regions == (source / "a.csv").stat().st_size
        assert up.terminate() == 0


def contents(folder):
    files = [path for path in folder.rglob("*") if path.is_file() and "_headrace" not in path.parts]
    return {str(p.relative_to(folder)): p.read_bytes() for p in files if p.name != "_report.json"}
