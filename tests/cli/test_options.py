import click
import pytest
from click.testing import CliRunner

from cases import for_each
from headrace.cli.options import (
    FLOW_OPTIONS,
    PART_OPTIONS,
    SEQUENCE_OPTIONS,
    SOURCE_OPTIONS,
    parse_bytes,
    parse_columns,
    parse_delimiter,
    parse_sequence,
    parse_size_px,
    predictor_options,
    stream_settings,
)
from headrace.cli.runs import EXISTING_OPTIONS
from headrace.cli.transform_options import FILTER_OPTIONS, LIMIT_OPTIONS, TASK_BYTES_OPTION
from headrace.formats.read import ReadOptions
from headrace.runs.settings import FlowSettings, MappingOptions, OutputSettings, StreamSettings

CONTEXT = click.Context(click.Command("x"))
PARAMETER = click.Option(["--x"])


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
    assert parse_bytes(CONTEXT, PARAMETER, text) == size
    assert parse_bytes(CONTEXT, PARAMETER, None) is None


@for_each("text", ["", "0", "-5", "inf", "nan", "1e3", "k", "5x", "1.2.3"])
def test_invalid_size_is_refused(text):
    with pytest.raises(click.BadParameter, match="is not a size: write 16MiB, 64k or 1000"):
        parse_bytes(CONTEXT, PARAMETER, text)


@for_each(
    ("text", "columns"),
    [
        (None, ()),
        ("a, b ,c", ("a", "b", "c")),
        ("0,3,5-7", (0, 3, 5, 6, 7)),
        ("4-4", (4,)),
        ("a-b", ("a-b",)),
        ("-1", ("-1",)),
    ],
)
def test_columns_are_parsed(text, columns):
    assert parse_columns(CONTEXT, PARAMETER, text) == columns


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
    with pytest.raises(click.BadParameter, match=why):
        parse_columns(CONTEXT, PARAMETER, text)


def test_delimiters_are_parsed():
    assert [parse_delimiter(CONTEXT, PARAMETER, t) for t in (None, ";", r"\t", "\t")] == [
        None,
        ";",
        "\t",
        "\t",
    ]
    with pytest.raises(click.BadParameter, match="is not a single character"):
        parse_delimiter(CONTEXT, PARAMETER, "||")


def test_image_sizes_are_parsed():
    assert parse_size_px(CONTEXT, PARAMETER, "224X112") == (224, 112)
    assert parse_size_px(CONTEXT, PARAMETER, None) is None
    for bad in ("224", "0x5", "axb", "1x2x3"):
        with pytest.raises(click.BadParameter, match="HEIGHTxWIDTH"):
            parse_size_px(CONTEXT, PARAMETER, bad)


def parsed(*args: str) -> dict:
    """Return the parameters of a command with all stream options."""
    found: dict = {}

    @click.command()
    @SOURCE_OPTIONS
    @SEQUENCE_OPTIONS
    @FLOW_OPTIONS
    @PART_OPTIONS
    @FILTER_OPTIONS
    @LIMIT_OPTIONS
    @TASK_BYTES_OPTION
    @EXISTING_OPTIONS
    def command(**params):
        found.update(params)

    result = CliRunner().invoke(command, args, catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return found


def test_default_options_give_the_default_settings():
    """The command must behave as ``headrace.run`` does."""
    assert stream_settings(parsed()) == StreamSettings()
    options = predictor_options(parsed())
    assert options == type(options)()
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
    options = predictor_options(params)
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
    with pytest.raises(click.BadParameter, match="@object or @member"):
        parse_sequence(CONTEXT, PARAMETER, text)
