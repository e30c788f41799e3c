from typing import Any

import click
import pytest
from click.testing import CliRunner

from cases import for_each
from headrace.app.models import PredictorOptions
from headrace.app.server_options import JobsOptions
from headrace.cli.options import SIZE, key_values, setting_options, settings_from
from headrace.cli.run_options import STREAM_OPTIONS, stream_settings
from headrace.cli.runs import EXISTING_OPTIONS
from headrace.core.errors import ConfigError
from headrace.formats.read_options import ReadOptions
from headrace.runs.output_settings import OutputSettings
from headrace.runs.settings import FlowSettings, MappingOptions, StreamSettings


@for_each(
    ("text", "size"),
    [
        ("1000", 1000),
        ("64k", 65536),
        ("16MiB", 16 << 20),
        ("1.5g", 3 << 29),
        ("2KB", 2048),
        ("7B", 7),
    ],
)
def test_sizes_are_parsed(text, size):
    assert SIZE.convert(text, None, None) == size


@for_each("text", ["", "0", "-5", "inf", "nan", "1e3", "k", "5x", "1.2.3"])
def test_invalid_size_is_refused(text):
    with pytest.raises(click.BadParameter, match="is not a size: write 16MiB, 64k or 1000"):
        SIZE.convert(text, None, None)


@for_each(
    ("text", "columns"),
    [
        ("", ()),
        ("a, b ,c", ("a", "b", "c")),
        ("0,3,5-7", (0, 3, 5, 6, 7)),
        ("4-4", (4,)),
        ("a-b", ("a-b",)),
        ("-1", ("-1",)),
        ("٣,٣-٤", ("٣", "٣-٤")),
    ],
)
def test_columns_are_parsed(text, columns):
    assert stream_settings(parsed("--columns", text)).mapping.columns == columns


@for_each(
    ("text", "why"),
    [
        ("a,1", "name all columns, or give the indices"),
        ("5-3", "5-3 is not a range"),
        ("0-999999999", "at most 100000 columns"),
        ("a,,b", "an empty column name"),
        (",", "an empty column name"),
    ],
)
def test_invalid_columns_are_refused(text, why):
    assert why in refused("--columns", text)


def test_delimiters_are_parsed():
    assert stream_settings(parsed()).read.delimiter is None
    given = [stream_settings(parsed("--delimiter", text)).read.delimiter for text in (";", r"\t", "\t")]
    assert given == [";", "\t", "\t"]
    assert "is not a single character" in refused("--delimiter", "||")


def test_image_sizes_are_parsed():
    assert stream_settings(parsed("--image-size", "224X112")).read.size_px == (224, 112)
    for bad in ("224", "0x5", "axb", "1x2x3"):
        assert "HEIGHTxWIDTH" in refused("--image-size", bad)


def _invoke(*args: str, **environ: str) -> tuple[dict, Any]:
    found: dict = {}

    @click.command(context_settings={"auto_envvar_prefix": "HEADRACE_TEST"})
    @STREAM_OPTIONS
    @EXISTING_OPTIONS
    def command(**params):
        found.update(params)

    return found, CliRunner().invoke(command, args, env=environ, catch_exceptions=False)


def parsed(*args: str, **environ: str) -> dict:
    """Return the parameters of a command with all stream options."""
    found, result = _invoke(*args, **environ)
    assert result.exit_code == 0, result.stderr
    return found


def refused(*args: str, **environ: str) -> str:
    """Return the message of wrong usage."""
    _, result = _invoke(*args, **environ)
    assert result.exit_code == 2
    return result.stderr


def test_default_options_give_the_default_settings():
    """The command must behave as ``headrace.run`` does."""
    assert stream_settings(parsed()) == StreamSettings()
    assert settings_from(PredictorOptions, parsed()) == PredictorOptions()
    assert (parsed()["resume"], parsed()["overwrite"]) == (False, False)


def test_every_option_reaches_its_setting():
    params = parsed(
        "--members",
        "*.csv",
        "--members",
        "*.tsv",
        "--format",
        "csv",
        "--compression",
        "gzip",
        "--delimiter",
        ";",
        "--quote",
        "'",
        "--escape",
        "^",
        "--null-word",
        "NA",
        "--null-word",
        "-",
        "--decimal",
        ",",
        "--comment",
        "#",
        "--skip-rows",
        "2",
        "--encoding",
        "latin-1",
        "--header",
        "names",
        "--columns",
        "a,b",
        "--record-bytes-max",
        "1k",
        "--image-size",
        "4x5",
        "--image-mode",
        "L",
        "--image-scale",
        "1",
        "--audio-channels",
        "keep",
        "--window-ms",
        "10",
        "--hop-ms",
        "5",
        "--sample-rate-hz",
        "8000",
        "--every-frames",
        "2",
        "--every-ms",
        "40",
        "--batch-rows-max",
        "7",
        "--batch-bytes-max",
        "2k",
        "--batch-delay-ms",
        "3",
        "--prefetch-bytes-max",
        "3k",
        "--instances",
        "2",
        "--protocol",
        "oip",
        "--endpoint-model",
        "m",
        "--in-flight-max",
        "9",
        "--timeout-s",
        "8",
        "--retry-s",
        "0",
        "--output-format",
        "jsonl",
        "--join",
        "input",
        "--output-header",
        "--part-bytes-max",
        "4k",
        "--checkpoint-s",
        "0",
        "--resume",
    )
    assert stream_settings(params) == StreamSettings(
        read=ReadOptions(
            compression="gzip",
            format="csv",
            members=("*.csv", "*.tsv"),
            delimiter=";",
            quote="'",
            escape="^",
            null_words=("NA", "-"),
            decimal=",",
            comment="#",
            skip_rows=2,
            encoding="latin-1",
            header="names",
            record_bytes_max=1024,
            size_px=(4, 5),
            image_mode="L",
            window_ms=10,
            hop_ms=5,
            sample_rate_hz=8000,
            audio_channels="keep",
            every_frames=2,
            every_ms=40,
        ),
        mapping=MappingOptions(columns=("a", "b"), image_scale=1),
        flow=FlowSettings(batch_rows_max=7, batch_bytes_max=2048, batch_delay_ms=3, prefetch_bytes_max=3072),
        output=OutputSettings(format="jsonl", join="input", header=True, part_bytes_max=4096, checkpoint_s=0),
    )
    options = settings_from(PredictorOptions, params)
    assert (options.instances, options.protocol, options.endpoint_model) == (2, "oip", "m")
    assert (options.in_flight_max, options.timeout_s, options.retry_s) == (9, 8, 0)
    assert params["resume"]
    assert parsed("--overwrite")["overwrite"]


def test_text_column_is_a_name_or_an_index():
    assert stream_settings(parsed("--text-column", "note")).mapping.text_column == "note"
    assert stream_settings(parsed("--text-column", "3")).mapping.text_column == 3


def test_sequence_is_a_column_an_index_or_a_place():
    settings = stream_settings(
        parsed("--sequence", "2", "--sequence-end", "last", "--sequences-live-max", "9")
    )
    assert (settings.mapping.sequence, settings.mapping.sequence_end) == (2, "last")
    assert settings.flow.sequences_live_max == 9
    assert stream_settings(parsed("--sequence", "@member")).mapping.by_place
    assert stream_settings(parsed()).mapping.sequence is None


@for_each("text", ["", "@objects", "@"])
def test_invalid_sequence_is_refused(text):
    assert "@object or @member" in refused("--sequence", text)


def test_each_setting_is_an_environment_variable():
    environ = {"HEADRACE_BATCH_ROWS_MAX": "7", "HEADRACE_MEMBERS": "a b", "HEADRACE_OUTPUT_HEADER": "false"}
    settings = stream_settings(parsed(**environ))
    assert (settings.flow.batch_rows_max, settings.read.members, settings.output.header) == (
        7,
        ("a", "b"),
        False,
    )
    assert stream_settings(parsed("--batch-rows-max", "3", **environ)).flow.batch_rows_max == 3
    own = {"HEADRACE_TEST_BATCH_ROWS_MAX": "5", **environ}
    assert stream_settings(parsed(**own)).flow.batch_rows_max == 5, "the command's own comes first"
    assert "HEADRACE_BATCH_ROWS_MAX" in refused(HEADRACE_BATCH_ROWS_MAX="0")


def test_address_that_kubernetes_sets_is_no_port():
    """A service named headrace gives each pod HEADRACE_PORT=tcp://…"""

    @click.command()
    @setting_options(JobsOptions)
    def command(port, **_):
        click.echo(repr(port))

    environ = {"HEADRACE_PORT": "tcp://10.0.0.1:8090"}
    assert CliRunner().invoke(command, env=environ).output == "None\n"
    assert CliRunner().invoke(command, env={"HEADRACE_PORT": "7"}).output == "7\n"


def test_values_are_toml_or_text():
    pairs = (
        "n=5",
        "share=0.5",
        "on=true",
        "name=plain text",
        'quoted="5"',
        "list=[1, 2]",
        "url=a=b",
        "empty=",
    )
    assert key_values(pairs, "--option") == {
        "n": 5,
        "share": 0.5,
        "on": True,
        "name": "plain text",
        "quoted": "5",
        "list": [1, 2],
        "url": "a=b",
        "empty": "",
    }


@for_each("pair", ["factor", "=5", ""])
def test_malformed_pair_is_refused_with_its_option(pair):
    with pytest.raises(ConfigError, match=r"--parameter .* must be KEY=VALUE"):
        key_values((pair,), "--parameter")
