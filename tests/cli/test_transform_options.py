"""Options of ``headrace transform`` become a spec's words, and count before those of a spec file."""

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from headrace.app.streaming import PredictorOptions
from headrace.app.workers import Workers
from headrace.cli.transform_options import (
    FAILURE_OPTIONS,
    INPUT_OPTIONS,
    OUTPUT_OPTIONS,
    SPEC_BYTES_MAX,
    WORK_OPTIONS,
    in_options_words,
    predictor_options_from,
    spec_from,
)
from headrace.cli.worker_options import WORKER_OPTIONS, workers_from
from headrace.core.errors import ConfigError
from headrace.transforms.own_words import WORDS
from headrace.transforms.settings import FailurePolicy, TransformSettings
from headrace.transforms.spec import TransformSpec


def given(*args: str) -> dict[str, Any]:
    """What click makes of a command line."""
    found: dict[str, Any] = {}

    @click.command()
    @INPUT_OPTIONS
    @OUTPUT_OPTIONS
    @FAILURE_OPTIONS
    @WORK_OPTIONS
    @WORKER_OPTIONS
    def command(**values: Any) -> None:
        found.update(values)

    done = CliRunner().invoke(command, list(args))
    assert done.exit_code == 0, done.output
    return found


def spec(*args: str, spec_file: Path | None = None) -> TransformSpec:
    return spec_from(given(*args), None if spec_file is None else str(spec_file))


def test_nothing_said_is_all_by_default():
    made = spec()
    assert made.settings.mapping.whole_records
    assert made.settings.identity() == {
        **TransformSettings().identity(),
        "mapping": made.settings.mapping.identity(),
    }
    assert (made.instances, made.max_concurrent, made.timeout_s, made.strict) == (None, None, None, False)


SAID = [
    (["--data-type", "manifest"], "data_type", "manifest"),
    (["--content-type", "text/csv", "--split", "csv"], "read.format", "csv"),
    (["--content-type", "jsonl"], "read.format", "jsonl"),
    (["--split", "tfrecord"], "read.format", "tfrecord"),
    (["--compression", "gzip"], "read.compression", "gzip"),
    (["--members", "*.csv", "--members", "x/*"], "read.members", ("*.csv", "x/*")),
    (["--header", "names"], "read.header", "names"),
    (["--delimiter", r"\t"], "read.delimiter", "\t"),
    (["--input-filter", "$[1:]"], "mapping.input_filter", "$[1:]"),
    (["--columns", "a,b"], "mapping.columns", ("a", "b")),
    (["--columns", "0-2"], "mapping.columns", (0, 1, 2)),
    (["--text-column", "t"], "mapping.text_column", "t"),
    (["--text-column", "3"], "mapping.text_column", 3),
    (["--record-bytes-max", "2m"], "read.record_bytes_max", 2 << 20),
    (["--image-size", "8x9"], "read.size_px", (8, 9)),
    (["--image-mode", "L"], "read.image_mode", "L"),
    (["--image-scale", "1"], "mapping.image_scale", 1.0),
    (["--window-ms", "20"], "read.window_ms", 20.0),
    (["--hop-ms", "10"], "read.hop_ms", 10.0),
    (["--sample-rate", "8000"], "read.sample_rate_hz", 8000),
    (["--audio-channels", "keep"], "read.audio_channels", "keep"),
    (["--every-frames", "5"], "read.every_frames", 5),
    (["--every-ms", "50"], "read.every_ms", 50.0),
    (["--accept", "parquet"], "output.accept", "parquet"),
    (["--assemble", "none"], "output.assemble", "none"),
    (["--join", "input"], "output.join", "input"),
    (["--output-filter", "$[0]"], "output.output_filter", "$[0]"),
    (["--slice-end", "inclusive"], "output.slice_end", "inclusive"),
    (["--slice-end", "inclusive"], "mapping.slice_end", "inclusive"),
    (["--output-header"], "output.header", True),
    (["--no-output-header"], "output.header", False),
    (["--on-error", "job"], "failures.on_error", "job"),
    (["--max-failed", "7"], "failures", FailurePolicy(failed_rows_max=7)),
    (["--max-failed", "1%"], "failures", FailurePolicy(failed_share_max=0.01)),
    (["--strict"], "failures.on_error", "object"),
    (["--batch-rows", "5"], "flow.batch_rows_max", 5),
    (["--strategy", "single"], "flow.batch_rows_max", 1),
    (["--batch-bytes", "3m"], "flow.batch_bytes_max", 3 << 20),
    (["--prefetch-bytes", "4m"], "flow.prefetch_bytes_max", 4 << 20),
    (["--task-bytes", "5m"], "tasks.task_bytes", 5 << 20),
    (["--checkpoint-s", "0"], "tasks.checkpoint_s", 0.0),
]  # fmt: skip
ELSEWHERE = {
    "protocol", "endpoint_model", "retry_s", "max_concurrent", "timeout_s",
}  # fmt: skip
"""Tested below: they are no settings."""
WORKERS = {parameter.name for parameter in WORKER_OPTIONS(click.Command("none")).params}
"""Tested in test_worker_options.py."""


@pytest.mark.parametrize(("args", "name", "value"), SAID, ids=[" ".join(s[0]) + " " + s[1] for s in SAID])
def test_every_options_word_reaches_the_spec(args, name, value):
    found: Any = spec(*args).settings
    for part in name.split("."):
        found = getattr(found, part)
    assert found == value


def test_no_option_is_left_out_here():
    usual = given()
    said = [name for args, _, _ in SAID for name, value in given(*args).items() if value != usual[name]]
    assert set(said) == set(usual) - ELSEWHERE - WORKERS


def test_how_endpoints_are_asked():
    made = given(
        "--protocol", "torchserve", "--endpoint-model", "m", "--max-concurrent", "3", "--timeout-s", "2.5", "--retry-s", "7",
    )  # fmt: skip
    assert predictor_options_from(made, spec_from(made, None)) == PredictorOptions(
        protocol="torchserve", endpoint_model="m", in_flight_max=3, timeout_s=2.5, retry_s=7.0
    )
    assert predictor_options_from(given(), spec()) == PredictorOptions()


def test_the_command_line_counts_before_the_file(tmp_path):
    file = tmp_path / "job.toml"
    file.write_text(
        '[headrace]\njoin = "input"\nbatch_rows = 9\nmembers = ["a"]\ninstances = 4\nwhole_records = false\n'
        "max_concurrent = 8\noutput_header = true\nretries = 0\n"
    )
    read = spec(spec_file=file)
    assert (read.settings.output.join, read.settings.flow.batch_rows_max, read.settings.output.header) == (
        "input",
        9,
        True,
    )
    assert not read.settings.mapping.whole_records
    assert workers_from(given(), read) == Workers(4, "thread")
    assert predictor_options_from(given(), read).retry_s == 0.0
    args = [
        "--join",
        "none",
        "--batch-rows",
        "2",
        "--members",
        "b",
        "--max-concurrent",
        "1",
        "--no-output-header",
    ]
    told = spec(*args, spec_file=file)
    assert (told.settings.output.join, told.settings.flow.batch_rows_max, told.settings.output.header) == (
        "none",
        2,
        False,
    )
    assert (told.settings.read.members, told.max_concurrent) == (("b",), 1)
    assert workers_from(given("--workers", "2"), told) == Workers(2, "process")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff", "is not UTF-8, from byte 0 on"),
        (b"[headrace]\nnothing = 1\n", "nothing"),
        (b"headrace = 3\n", "headrace"),
        (b"[headrace\n", "job.toml"),
        (b" " * (SPEC_BYTES_MAX + 1), "no larger than 4 MiB"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_is_no_spec_is_told(tmp_path, content, words):
    file = tmp_path / "job.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        spec(spec_file=file)
    assert "job.toml" in str(caught.value)


def test_what_is_wrong_with_options_is_told_in_their_words():
    with pytest.raises(ConfigError) as caught:
        spec("--on-error", "job", "--strict")
    assert in_options_words(str(caught.value)).startswith('--on-error "job" contradicts strict')
    assert in_options_words("headrace.nothing stays") == "headrace.nothing stays"
    assert (
        in_options_words("headrace.sample_rate_hz and headrace.image_size")
        == "--sample-rate and --image-size"
    )


def test_words_of_options_are_words_of_specs():
    assert {name for name in given() if name in WORDS} >= {"join", "accept", "image_size", "timeout_s"}
