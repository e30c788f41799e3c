"""``headrace jobs rerun``: a job again as a new one, or in this process and in the debugger."""

import pdb  # noqa: T100 - the debugger of the command
from dataclasses import replace

import pytest

from cases import for_each
from cli.job_commands import run_command, work_after_first_event
from headrace.jobs.ledger import JobFilter
from headrace.jobs.paths import UriAllowList
from integration.command import headrace
from jobs.service_support import TEST_KEY, served_jobs

MODEL = """
from headrace import Model

class Churn(Model):
    def predict(self, x):
        if (x > 2).any():
            raise ValueError("too large")
        return x.sum(axis=1)
"""


@pytest.fixture
def served(tmp_path, monkeypatch):
    (tmp_path / "churn.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    own = UriAllowList(prefixes=("s3://in", "s3://out"), local_roots=(str(tmp_path),))
    with served_jobs(anonymous=replace(TEST_KEY, inputs=own, outputs=own)) as made:
        yield made


def submit(served, *arguments):
    done = run_command(served, "submit", "-m", "churn", *arguments)
    assert done.code == 0, done.err
    return served.ledger.get(done.out.strip())


def newest(served):
    return served.ledger.find(JobFilter(), limit=1).jobs[0]


def test_new_job_has_the_input_and_the_parameters(served, tmp_path):
    (tmp_path / "rows.csv").write_text("1,2\n")
    options = (
        "--priority",
        "2",
        "--queue",
        "night",
        "--tag",
        "day=1",
        "--deadline-s",
        "60",
        "-O",
        "header=none",
    )
    first = submit(served, "rows.csv", *options, "--output-uri", "s3://out", "--key", "K")
    done = run_command(served, "jobs", "rerun", first.id)
    again = newest(served)
    assert (done.code, done.out.strip()) == (0, again.id)
    assert again.id != first.id
    assert served.payload(again.id) == served.payload(first.id) == b"1,2\n"
    for name in ("model", "queue", "priority", "deadline_s", "content_type", "options", "kind"):
        assert getattr(again.spec, name) == getattr(first.spec, name), name
    assert again.spec.tags == {"day": "1", "rerun_of": first.id}
    assert (again.spec.output_uri, again.spec.key) == ("", "")


def test_new_job_reads_the_object_of_the_first(served):
    first = submit(served, "s3://in/rows.csv", "--kind", "transform", "--output-uri", "s3://out/a")
    refused = run_command(served, "jobs", "rerun", first.id)
    assert refused.code == 1
    assert "the job wrote to s3://out/a" in refused.err
    done = run_command(served, "jobs", "rerun", first.id, "--output-uri", "s3://out/b")
    again = served.ledger.get(done.out.strip())
    assert (again.spec.input_uri, again.spec.output_uri) == ("s3://in/rows.csv", "s3://out/b")
    assert again.spec.kind == "transform"


def test_result_of_the_new_job_is_awaited(served, monkeypatch):
    first = submit(served, "--input", "[[1, 1]]")
    served.complete(served.claim())
    work_after_first_event(monkeypatch, served, lambda job: served.complete(job, b"43"))
    done = run_command(served, "jobs", "rerun", first.id, "--wait")
    assert (done.code, done.out) == (0, "43")


def test_job_runs_here(served, tmp_path):
    job = submit(served, "--input", "[[1, 1]]")
    done = run_command(served, "jobs", "rerun", job.id, "--local")
    assert (done.code, '"data":[2.0]' in done.out) == (0, True), done.err
    assert newest(served).id == job.id, "nothing was submitted"
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    rows = submit(served, "rows.csv", "-O", "header=names")
    saved = run_command(
        served, "jobs", "rerun", rows.id, "--local", "--model", "churn.py", "-o", "scores.csv"
    )
    assert (saved.code, (tmp_path / "scores.csv").read_text()) == (0, "output\n3.0\n"), saved.err


def test_transform_runs_here(served, tmp_path):
    (tmp_path / "rows.csv").write_text("1,2\n")
    uri = (tmp_path / "rows.csv").as_uri()
    job = submit(served, uri, "--kind", "transform", "--output-uri", "s3://out/a")
    done = run_command(served, "jobs", "rerun", job.id, "--local", "--output-uri", str(tmp_path / "scored"))
    assert done.code == 0, done.err
    assert (tmp_path / "scored" / "rows.csv.out").read_text() == "3.0\n"


@for_each("payload", ["[[5, 1]]", "rows"])
def test_debugger_opens_where_the_model_failed(served, tmp_path, monkeypatch, payload):
    (tmp_path / "rows.csv").write_text("5,1\n6,1\n")
    job = submit(served, *(("rows.csv",) if payload == "rows" else ("--input", payload)))
    frames = []

    def post_mortem(traceback):
        while traceback.tb_next is not None:
            traceback = traceback.tb_next
        frames.append(traceback.tb_frame)

    monkeypatch.setattr(pdb, "post_mortem", post_mortem)
    done = run_command(served, "jobs", "rerun", job.id, "--local", "--pdb")
    assert done.code == 1
    (frame,) = frames
    assert (frame.f_code.co_name, frame.f_locals["x"].max()) == ("predict", 5.0 if payload != "rows" else 6.0)
    assert "ValueError: too large" in done.err
    frames.clear()
    plain = run_command(served, "jobs", "rerun", job.id, "--local")
    assert (plain.code, frames) == (1, [])
    assert "Traceback (most recent call last):" in plain.err


def test_model_must_be_found(served, tmp_path):
    job = submit(served, "--input", "[[1, 1]]")
    (tmp_path / "churn.onnx").touch()
    done = run_command(served, "jobs", "rerun", job.id, "--local")
    assert "the current folder has churn.onnx, churn.py for the job's model 'churn'" in done.err
    (tmp_path / "churn.onnx").unlink()
    (tmp_path / "churn.py").unlink()
    assert "the current folder has none" in run_command(served, "jobs", "rerun", job.id, "--local").err


@for_each(
    ("arguments", "reason"),
    [
        ("--pdb", "--pdb requires --local"),
        ("--model churn.py", "--model requires --local"),
        ("-O a=1", "--option requires --local"),
        ("--output a", "--output requires --wait or --local"),
        ("--local --wait", "--wait does not fit --local"),
    ],
)
def test_wrong_usage_is_refused(arguments, reason):
    done = headrace("jobs", "rerun", "x", *arguments.split())
    assert (done.code, reason in done.err) == (2, True), done.err
