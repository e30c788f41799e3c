"""Stream jobs. Behaviour shared with transforms is tested in `test_transform`."""

from dataclasses import replace

import pytest

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.jobs.attempt import Attempt
from headrace.jobs.job import NewJob
from headrace.jobs.kinds.stream import StreamKind
from headrace.jobs.kinds.transform import TransformKind
from headrace.storage.resolve import Stores
from jobs.support import attempt_at, one_model


def test_part_limits_are_applied(tmp_path):
    (tmp_path / "in.csv").write_text("1,2\n" * 100)
    spec = NewJob(
        model="m",
        input_uri=f"{tmp_path}/in.csv",
        output_uri=f"{tmp_path}/out/",
        options={"part_rows_max": 40, "batch_rows_max": 10, "accept": "application/jsonlines"},
    )
    with Stores() as stores, one_model() as models:
        StreamKind(models, stores).run(attempt_at(spec))
    parts = sorted((tmp_path / "out").glob("part-*.jsonl"))
    assert [len(part.read_text().splitlines()) for part in parts] == [40, 40, 20]


@for_each("options", [{"part_rows_max": "40"}, {"part_bytes_max": 0}, {"accept": "image/png"}])
def test_invalid_part_limits_are_refused(tmp_path, options):
    spec = NewJob(model="m", input_uri=f"{tmp_path}/in.csv", output_uri=f"{tmp_path}/out/", options=options)
    with Stores() as stores, one_model() as models, pytest.raises(ConfigError):
        StreamKind(models, stores).run(attempt_at(spec))


@for_each(("worker_region", "across"), [("us", 400), ("eu", 0), ("", 0)])
def test_bytes_of_another_region_are_counted(tmp_path, worker_region, across):
    (tmp_path / "in.csv").write_text("1,2\n" * 100)
    for kind, folder in ((StreamKind, "parts"), (TransformKind, "files")):
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
