"""Options of ``headrace transform`` become spec keys and override those of a spec file."""

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from cases import for_each
from headrace.app.models import PredictorOptions
from headrace.app.runners import Workers
from headrace.cli.options import settings_from
from headrace.cli.run_options import (
    RUNNER_OPTIONS,
    SPEC_BYTES_MAX,
    TRANSFORM_OPTIONS,
    spec_from,
    with_option_names,
    with_spec_values,
    workers_from,
)
from headrace.core.errors import ConfigError
from headrace.runs.document import EXTENSION_FIELDS
from headrace.runs.failure_policy import FailurePolicy
from headrace.runs.settings import TransformSettings
from headrace.runs.spec import TransformSpec


def parsed(*args: str) -> dict[str, Any]:
    """Return the parameters of a command with all transform options."""
    found: dict[str, Any] = {}

    @click.command()
    @TRANSFORM_OPTIONS
    @RUNNER_OPTIONS
    def command(**values: Any) -> None:
        found.update(values)

    done = CliRunner().invoke(command, list(args))
    assert done.exit_code == 0, done.output
    return found


def spec(*args: str, spec_file: Path | None = None) -> TransformSpec:
    return spec_from(parsed(*args), None if spec_file is None else str(spec_file))


def test_default_options_give_the_default_spec():
    made = spec()
    assert made.settings.mapping.whole_records
    assert made.settings.identity() == {
        **TransformSettings().identity(),
        "mapping": made.settings.identity()["mapping"],
    }
    assert (made.instances, made.in_flight_max, made.timeout_s, made.strict) == (None, None, None, False)


CASES = [
    (["--data-type", "manifest"], "data_type", "manifest"),
    (["--schema", "strict"], "schema", "strict"),
    (["--limit", "100"], "subset.limit", 100),
    (["--sample", "1%"], "subset.sample", 0.01),
    (["--sample", "0.5"], "subset.sample", 0.5),
    (["--sample-seed", "7"], "subset.sample_seed", 7),
    (["--content-type", "text/csv", "--split", "csv"], "read.format", "csv"),
    (["--content-type", "jsonl"], "read.format", "jsonl"),
    (["--split", "tfrecord"], "read.format", "tfrecord"),
    (["--compression", "gzip"], "read.compression", "gzip"),
    (["--members", "*.csv", "--members", "x/*"], "read.members", ("*.csv", "x/*")),
    (["--header", "names"], "read.header", "names"),
    (["--delimiter", r"\t"], "read.delimiter", "\t"),
    (["--quote", ""], "read.quote", ""),
    (["--escape", "\\"], "read.escape", "\\"),
    (["--null-word", "NA", "--null-word", ""], "read.null_words", ("NA", "")),
    (["--delimiter", ";", "--decimal", ","], "read.decimal", ","),
    (["--comment", "#"], "read.comment", "#"),
    (["--skip-rows", "3"], "read.skip_rows", 3),
    (["--encoding", "utf-16"], "read.encoding", "utf-16"),
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
    (["--sample-rate-hz", "8000"], "read.sample_rate_hz", 8000),
    (["--audio-channels", "keep"], "read.audio_channels", "keep"),
    (["--every-frames", "5"], "read.every_frames", 5),
    (["--every-ms", "50"], "read.every_ms", 50.0),
    (["--accept", "parquet"], "output.format", "parquet"),
    (["--assemble", "none"], "output.assemble", "none"),
    (["--join", "input"], "output.join", "input"),
    (["--keep", "a, b"], "output.keep", ("a", "b")),
    (["--partition-by", "day, country"], "output.partition_by", ("day", "country")),
    (["--drop", "a,b"], "output.drop", ("a", "b")),
    (["--rename", "a=b,c=d"], "output.rename", ("a=b", "c=d")),
    (["--output-filter", "$[0]"], "output.output_filter", "$[0]"),
    (["--slice-end", "inclusive"], "output.slice_end", "inclusive"),
    (["--slice-end", "inclusive"], "mapping.slice_end", "inclusive"),
    (["--output-header"], "output.header", True),
    (["--no-output-header"], "output.header", False),
    (["--on-error", "job"], "failures.on_error", "job"),
    (["--max-failed", "7"], "failures", FailurePolicy(failed_rows_max=7)),
    (["--max-failed", "1%"], "failures", FailurePolicy(failed_share_max=0.01)),
    (["--strict"], "failures.on_error", "object"),
    (["--batch-rows-max", "5"], "flow.batch_rows_max", 5),
    (["--strategy", "single"], "flow.batch_rows_max", 1),
    (["--batch-bytes-max", "3m"], "flow.batch_bytes_max", 3 << 20),
    (["--prefetch-bytes-max", "4m"], "flow.prefetch_bytes_max", 4 << 20),
    (["--task-bytes", "5m"], "tasks.task_bytes", 5 << 20),
    (["--checkpoint-s", "0"], "output.checkpoint_s", 0.0),
]
OTHER_OPTIONS = {
    "protocol",
    "endpoint_model",
    "retry_s",
    "in_flight_max",
    "timeout_s",
}
"""Options without a transform setting; other tests of this file cover them."""
RUNNER_PARAMETERS = {parameter.name for parameter in RUNNER_OPTIONS(click.Command("none")).params}
"""Parameters that test_runner_options.py covers."""


@for_each(("args", "name", "value"), CASES)
def test_every_option_reaches_the_spec(args, name, value):
    found: Any = spec(*args).settings
    for part in name.split("."):
        found = getattr(found, part)
    assert found == value


def test_all_options_are_tested():
    defaults = parsed()
    changed = [
        name for args, _, _ in CASES for name, value in parsed(*args).items() if value != defaults[name]
    ]
    assert set(changed) == set(defaults) - OTHER_OPTIONS - RUNNER_PARAMETERS


def test_endpoint_options_reach_the_predictor_options():
    made = parsed(
        "--protocol",
        "torchserve",
        "--endpoint-model",
        "m",
        "--in-flight-max",
        "3",
        "--timeout-s",
        "2.5",
        "--retry-s",
        "7",
    )
    assert with_spec_values(settings_from(PredictorOptions, made), spec_from(made, None)) == PredictorOptions(
        protocol="torchserve", endpoint_model="m", in_flight_max=3, timeout_s=2.5, retry_s=7.0
    )
    assert with_spec_values(PredictorOptions(), spec()) == PredictorOptions()


def test_options_override_the_spec_file(tmp_path):
    file = tmp_path / "job.toml"
    file.write_text(
        '[headrace]\njoin = "input"\nbatch_rows = 9\nmembers = ["a"]\ninstances = 4\nwhole_records = false\n'
        "in_flight_max = 8\noutput_header = true\nretries = 0\n"
    )
    read = spec(spec_file=file)
    assert (read.settings.output.join, read.settings.flow.batch_rows_max, read.settings.output.header) == (
        "input",
        9,
        True,
    )
    assert not read.settings.mapping.whole_records
    assert workers_from(parsed(), read.instances) == Workers(4, "thread")
    assert with_spec_values(PredictorOptions(), read).retry_s == 0.0
    args = [
        "--join",
        "none",
        "--batch-rows-max",
        "2",
        "--members",
        "b",
        "--in-flight-max",
        "1",
        "--no-output-header",
    ]
    overridden = spec(*args, spec_file=file)
    assert (
        overridden.settings.output.join,
        overridden.settings.flow.batch_rows_max,
        overridden.settings.output.header,
    ) == (
        "none",
        2,
        False,
    )
    assert (overridden.settings.read.members, overridden.in_flight_max) == (("b",), 1)
    assert workers_from(parsed("--workers", "2"), overridden) == Workers(2, "process")


@for_each(
    ("content", "words"),
    [
        (b"\xff", "invalid UTF-8 at byte 0"),
        (b"[headrace]\nnothing = 1\n", "nothing"),
        (b"headrace = 3\n", "headrace"),
        (b"[headrace\n", "job.toml"),
        (b" " * (SPEC_BYTES_MAX + 1), "larger than 4 MiB"),
        (None, "cannot be read: No such file"),
    ],
)
def test_invalid_spec_file_is_refused(tmp_path, content, words):
    file = tmp_path / "job.toml"
    file.unlink(missing_ok=True)
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        spec(spec_file=file)
    assert "job.toml" in str(caught.value)


def test_option_errors_use_option_names():
    with pytest.raises(ConfigError) as caught:
        spec("--on-error", "job", "--strict")
    assert with_option_names(str(caught.value)).startswith('--on-error "job" contradicts strict')
    assert with_option_names("headrace.nothing stays") == "headrace.nothing stays"
    assert (
        with_option_names("headrace.sample_rate_hz and headrace.image_size")
        == "--sample-rate-hz and --image-size"
    )


def test_options_are_keys_of_specs():
    assert {name for name in parsed() if name in EXTENSION_FIELDS} >= {
        "join",
        "accept",
        "image_size",
        "timeout_s",
    }
