"""Transform and stream jobs: output, report, resumption, stop and invalid options."""

import json
from dataclasses import replace

import pytest

from cases import for_each
from headrace.core.errors import ConfigError, DataError, HeadraceError
from headrace.jobs.job import NewJob
from headrace.jobs.kinds import Attempt, AttemptStoppedError, StopReason
from headrace.jobs.kinds.runners import RunJobs, stream_settings, transform_settings
from headrace.storage.resolve import Stores
from jobs.support import Doubles, attempt_at, one_model


def streams(models, stores) -> RunJobs:
    return RunJobs(models, stores, stream_settings)


def transforms(models, stores) -> RunJobs:
    return RunJobs(models, stores, transform_settings)


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.csv").write_text("".join(f"{i},{i}\n" for i in range(300)))
    return f"{folder}/"


@pytest.mark.parametrize(
    ("make_kind", "written"),
    [(transforms, ["a.csv.out", "b.csv.out"]), (streams, ["part-00000.csv"])],
)
def test_output_and_report_are_below_output_uri(tmp_path, source, make_kind, written):
    spec = NewJob(model="m", input_uri=source, output_uri=f"{tmp_path}/out/")
    with Stores() as stores, one_model() as models:
        attempt = attempt_at(spec)
        result = make_kind(models, stores).run(attempt)
        assert result.uri == f"{tmp_path}/out/_report.json"
        report = json.loads((tmp_path / "out" / "_report.json").read_text())
    assert (report["rows_out"], report["exit_code"]) == (600, 0)
    lines = "".join((tmp_path / "out" / name).read_text() for name in written).splitlines()
    assert [float(line) for line in lines] == [4.0 * i for _ in "ab" for i in range(300)]
    assert attempt.progress.done == attempt.progress.total > 0


def test_report_counts_bytes_of_another_region(tmp_path, source):
    spec = NewJob(model="m", input_uri=source, output_uri=f"{tmp_path}/out/", region="eu")
    with Stores() as stores, one_model() as models:
        transforms(models, stores).run(Attempt(replace(attempt_at(spec).job, worker_region="us")))
    report = json.loads((tmp_path / "out" / "_report.json").read_text())
    size = sum(path.stat().st_size for path in (tmp_path / "in").iterdir())
    assert report["bytes_across_regions"] == [{"from": "eu", "to": "us", "bytes": size}]


@pytest.mark.parametrize("make_kind", [transforms, streams])
def test_next_attempt_resumes(tmp_path, source, make_kind):
    # A drain stops the first attempt; the second predicts only the remaining rows.
    spec = NewJob(
        model="m",
        input_uri=source,
        output_uri=f"{tmp_path}/out/",
        options={"batch_rows_max": 10, "checkpoint_s": 0},
    )
    (tmp_path / "in" / "b.csv").unlink()
    for i in range(10):
        (tmp_path / "in" / f"b{i:02}.csv").write_text("1,2\n" * 30)
    predicted: list[int] = []
    holder = {}

    class Counting(Doubles):
        def predict(self, x):
            predicted.append(len(x))
            if len(predicted) == 5 and "first" in holder:
                holder.pop("first").stop(StopReason.DRAIN)
            return super().predict(x)

    with Stores() as stores, one_model(Counting) as models:
        predicted.clear()  # the rows of the warm-up
        first = holder["first"] = attempt_at(spec)
        with pytest.raises((HeadraceError, AttemptStoppedError)):
            make_kind(models, stores).run(first)
        before = sum(predicted)
        assert 50 <= before < 600
        make_kind(models, stores).run(attempt_at(spec, lease=2))
        assert sum(predicted) - before <= 600 - before + 10
    written = sorted(p for p in (tmp_path / "out").iterdir() if p.is_file() and not p.name.startswith("_"))
    lines = "".join(path.read_text() for path in written).splitlines()
    assert [float(line) for line in lines] == [4.0 * i for i in range(300)] + [6.0] * 300


@pytest.mark.parametrize("make_kind", [transforms, streams])
def test_invalid_job_fails_before_it_runs(tmp_path, source, make_kind):
    with Stores() as stores, one_model() as models:
        for spec, why in (
            (NewJob(model="m", input_uri=source), "output_uri"),
            (NewJob(model="m", input_uri=source, output_uri=f"{tmp_path}/o/", options={"splot": 1}), "splot"),
            (
                NewJob(model="m", input_uri=source, output_uri=f"{tmp_path}/o/", options={"source": "x"}),
                "not an option",
            ),
        ):
            with pytest.raises(ConfigError, match=why):
                make_kind(models, stores).run(attempt_at(spec))
    assert not (tmp_path / "o").exists()


def test_suppressed_objects_fail_the_job(tmp_path, source):
    (tmp_path / "in" / "a.csv").write_text("1,2\n-1,3\n")
    spec = NewJob(model="m", input_uri=source, output_uri=f"{tmp_path}/out/", options={"on_error": "object"})
    with Stores() as stores, one_model() as models, pytest.raises(DataError, match="1 of 2 objects"):
        transforms(models, stores).run(attempt_at(spec))


def test_sagemaker_options_are_supported(tmp_path, source):
    spec = NewJob(
        model="m",
        input_uri=source,
        output_uri=f"{tmp_path}/out/",
        options={
            "TransformInput": {"ContentType": "text/csv", "SplitType": "Line"},
            "TransformOutput": {"Accept": "text/csv", "AssembleWith": "Line"},
            "DataProcessing": {"JoinSource": "Input"},
        },
    )
    with Stores() as stores, one_model() as models:
        try:
            transforms(models, stores).run(attempt_at(spec))
        except ConfigError as error:
            pytest.fail(str(error))
    assert (tmp_path / "out" / "a.csv.out").read_text().splitlines()[3] == "3,3,12.0"


# Streams


def test_part_limits_are_applied(tmp_path):
    (tmp_path / "in.csv").write_text("1,2\n" * 100)
    spec = NewJob(
        model="m",
        input_uri=f"{tmp_path}/in.csv",
        output_uri=f"{tmp_path}/out/",
        options={"part_rows_max": 40, "batch_rows_max": 10, "accept": "application/jsonlines"},
    )
    with Stores() as stores, one_model() as models:
        streams(models, stores).run(attempt_at(spec))
    parts = sorted((tmp_path / "out").glob("part-*.jsonl"))
    assert [len(part.read_text().splitlines()) for part in parts] == [40, 40, 20]


@for_each("options", [{"part_rows_max": "40"}, {"part_bytes_max": 0}, {"accept": "image/png"}])
def test_invalid_part_limits_are_refused(tmp_path, options):
    spec = NewJob(model="m", input_uri=f"{tmp_path}/in.csv", output_uri=f"{tmp_path}/out/", options=options)
    with Stores() as stores, one_model() as models, pytest.raises(ConfigError):
        streams(models, stores).run(attempt_at(spec))


@for_each(("worker_region", "across"), [("us", 400), ("eu", 0), ("", 0)])
def test_bytes_of_another_region_are_counted(tmp_path, worker_region, across):
    (tmp_path / "in.csv").write_text("1,2\n" * 100)
    for kind, folder in ((streams, "parts"), (transforms, "files")):
        spec = NewJob(
            model="m",
            input_uri=f"{tmp_path}/in.csv",
            output_uri=f"{tmp_path}/{folder}-{worker_region}/",
            region="eu",
        )
        attempt = attempt_at(spec)
        attempt = Attempt(replace(attempt.job, worker_region=worker_region))
        with Stores() as stores, one_model() as models:
            kind(models, stores).run(attempt)
        assert attempt.progress.bytes_across_regions == across


def test_requests_become_responses(tmp_path):
    x = {"name": "x", "shape": [2, 2], "datatype": "FP64", "data": [1, 2, 3, 4]}
    bad = {"name": "x", "shape": [1, 2], "datatype": "FP64", "data": [-1, 2]}
    file = tmp_path / "in.jsonl"
    file.write_text(
        "".join(json.dumps({"id": str(n), "inputs": [one]}) + "\n" for n, one in enumerate((x, bad)))
    )
    for make_kind, written in ((transforms, "in.jsonl.out"), (streams, "part-00000.jsonl")):
        folder = tmp_path / written
        options = {"content_type": "v2"}
        spec = NewJob(model="m", input_uri=str(file), output_uri=f"{folder}/", options=options)
        with Stores() as stores, one_model() as models:
            make_kind(models, stores).run(attempt_at(spec))
        (response,) = map(json.loads, (folder / written).read_text().splitlines())
        y = {"name": "y", "shape": [2], "datatype": "FP64", "data": [6.0, 14.0]}
        assert response == {"model_name": "m", "id": "0", "outputs": [y]}
        assert json.loads((folder / "_report.json").read_text())["rows_failed"] == 1
