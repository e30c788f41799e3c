"""Workers apart from the API: PostgreSQL, objects on an S3 server, Valkey to wake them; killed in the middle, nothing is lost."""

import random

import pytest

from headrace.jobs.job import KINDS
from headrace.jobs.state import JobState
from integration.jobs_process import MODEL, WAIT_S, Process, Up, until

JOBS = 40


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
    leases = ("--lease-s", "2", "--beat-s", "0.4", "--log-format", "text")
    return Process(folder, "work", "model.py", *options, *leases, *more, environ=environ)


def test_two_workers_share_the_jobs_and_one_is_killed(tmp_path, apart, s3_server):
    options, bucket, environ = apart
    s3 = s3_server.client()
    output = ("--allow-output", f"s3://{bucket}/out")
    with (
        Up(tmp_path, *options, *output, environ=environ) as up,
        worker(tmp_path, options, environ, "--concurrency", "4") as one,
        worker(tmp_path, options, environ, "--concurrency", "4") as two,
    ):
        for process in (up, one, two):
            process.wait_until_ready()
        with up.client() as client:
            named = {"content_type": "text/csv", "output_uri": f"s3://{bucket}/out/"}
            # The first ones wait in the model, so that the worker that dies has some in hand.
            jobs = [client.submit("model", "-1,0\n", **named) for _ in range(2)]
            jobs += [client.submit("model", f"{number},0\n", **named) for number in range(2, JOBS)]
            running = until(client, jobs[0].id, JobState.RUNNING)
            doomed, other = (one, two) if running.worker in "".join(one.said) else (two, one)
            assert any(running.worker in line for line in doomed.said)
            doomed.kill()
            (tmp_path / "go").touch()
            ended = [client.wait(job.id, WAIT_S) for job in jobs]
            assert {job.state for job in ended} == {JobState.COMPLETED}
            assert [client.result(job.id) for job in jobs[:3]] == [b"-2.0\n", b"-2.0\n", b"4.0\n"]
            assert ended[0].crashes == 1
            assert other.terminate() == 0
            assert up.terminate() == 0
    # Every job has its one result, and nothing else stands where it was asked for.
    left = {item["Key"] for item in s3.list_objects_v2(Bucket=bucket, Prefix="out/")["Contents"]}
    assert left <= {f"out/{job.id}.out" for job in jobs}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "infer"])
def test_long_jobs_are_killed_and_their_output_is_an_undisturbed_runs(tmp_path, kind):
    """Every attempt goes on where the last one was, also after kill -9."""
    rng = random.Random(7)
    source = tmp_path / "in"
    source.mkdir()
    for name in "abcdef":
        lines = ["oops,1" if n % 97 == 5 else f"{rng.random():.6f},0" for n in range(400)]
        # The last file waits in the model: the process is killed then.
        lines[300] = "-1,0" if name == "d" else lines[300]
        (source / f"{name}.csv").write_text("\n".join(lines) + "\n")
    places = ("--allow-input", source, "--allow-output", tmp_path / "out")
    job = {
        "kind": kind, "input_uri": f"{source}/", "options": {"batch_rows": 8, "checkpoint_s": 0, "max_failed": "100%"},
    }  # fmt: skip
    with Up(tmp_path, "model.py", *map(str, places)) as first, first.wait_until_ready().client() as client:
        killed = client.submit("model", output_uri=f"{tmp_path}/out/killed/", **job)
        for seen in client.events(killed.id):
            if seen.progress is not None and seen.progress.done:
                break
        first.kill()
    (tmp_path / "go").touch()
    with Up(tmp_path, "model.py", *map(str, places)) as second, second.wait_until_ready().client() as client:
        calm = client.submit("model", output_uri=f"{tmp_path}/out/calm/", **job)
        ended = [client.wait(each.id, WAIT_S) for each in (killed, calm)]
        assert [each.state for each in ended] == [JobState.COMPLETED] * 2, ended
        assert ended[0].attempt == 2
        assert b'"rows_failed"' in client.result(killed.id)
    written = contents(tmp_path / "out" / "calm")
    assert written
    assert contents(tmp_path / "out" / "killed") == written


def test_a_job_is_worked_on_away_from_its_data_only_where_that_is_allowed(tmp_path):
    """The file says where data lives; the worker says where it is."""
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
    with Up(tmp_path, *options) as up, up.wait_until_ready().client() as client:
        far = client.submit("model", **job)
        # After it has been passed over: with "never" the worker has only this one to do.
        near = client.wait(client.submit("model", "1,0\n", content_type="text/csv", region="us").id, WAIT_S)
        assert (near.state, near.worker_region) == (JobState.COMPLETED, "us")
        assert client.queue("default")["queued_by_region"] == {"eu": 1}
        assert up.terminate() == 0
    with Up(tmp_path, *options, "--other-regions", "idle") as up, up.wait_until_ready().client() as client:
        done = client.wait(far.id, WAIT_S)
        assert (done.state, done.spec.region, done.worker_region) == (JobState.COMPLETED, "eu", "us")
        assert done.progress.bytes_across_regions == (source / "a.csv").stat().st_size
        assert up.terminate() == 0


def contents(folder):
    files = [path for path in folder.rglob("*") if path.is_file() and "_headrace" not in path.parts]
    return {str(p.relative_to(folder)): p.read_bytes() for p in files if p.name != "_report.json"}
