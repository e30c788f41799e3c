import json
from dataclasses import replace
from typing import get_args

import pytest

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.formats.read_options import ReadOptions
from headrace.runs.failure_policy import FailurePolicy
from headrace.runs.output_settings import PART_SUFFIXES, OutputFormat, OutputSettings
from headrace.runs.settings import (
    FlowSettings,
    MappingOptions,
    StreamSettings,
    TransformSettings,
    settings_from_identity,
)
from runs.support import make_settings


@for_each(
    ("invalid", "why"),
    [
        ({"data_type": "folder"}, r"data_type must be one of auto, prefix, manifest, not 'folder'"),
        ({"output": {"format": "xml"}}, r"format must be one of auto, csv"),
        ({"output": {"assemble": "page"}}, r"assemble must be one of line, none"),
        ({"output": {"join": "left"}}, r"join must be one of none, input"),
        ({"output": {"output_filter": "$["}}, r"\$\["),
        ({"output": {"format": "parquet", "output_filter": "$.y"}}, r"remove the filter"),
        ({"output": {"rename": ("a",)}}, r"write it as OLD=NEW"),
        ({"output": {"rename": ("a=b", "a=c")}}, r"rename has a name twice"),
        ({"output": {"keep": ("a", "a")}}, r"keep has a name twice"),
        ({"output": {"drop": ("a", "")}}, r"an empty name"),
        ({"output": {"keep": ("a",), "drop": ("a",)}}, r"drop removes 'a', which keep"),
        ({"output": {"format": "text", "keep": ("a",)}}, r"the format is text: choose csv"),
        ({"failures": {"on_error": "row"}}, r"on_error must be one of record, object, job"),
        (
            {"failures": {"failed_rows_max": -1}},
            r"failed_rows_max must be a whole number of 0 or more, not -1",
        ),
        ({"failures": {"failed_share_max": 1.5}}, r"failed_share_max must be a number from 0 to 1, not 1.5"),
        ({"tasks": {"task_bytes": 0}}, r"task_bytes must be a size in bytes of 1 or more, .*not 0"),
        ({"tasks": {"task_objects_max": 0}}, r"task_objects_max must be a whole number of 1 or more"),
        ({"checkpoint_s": -0.1}, r"checkpoint_s must be a number of 0 or more"),
        ({"flow": {"batch_delay_ms": 5}}, r"batch_delay_ms has no meaning here"),
        ({"mapping": {"sequence": "@object"}}, r"it does not support sequences: use headrace stream"),
    ],
)
def test_invalid_settings_are_refused(invalid, why):
    with pytest.raises(ConfigError, match=why):
        make_settings(**invalid)


WRITTEN = [
    {"data_type": "prefix"},
    {"read": {"header": "names"}},
    {"mapping": {"columns": (1,)}},
    {"mapping": {"whole_records": True}},
    {"flow": {"batch_rows_max": 3}},
    {"flow": {"batch_bytes_max": 3}},
    {"output": {"format": "csv"}},
    {"output": {"keep": ("a",)}},
    {"output": {"drop": ("a",)}},
    {"output": {"rename": ("a=b",)}},
    {"output": {"slice_end": "inclusive"}},
    {"failures": {"on_error": "object"}},
    {"tasks": {"task_bytes": 3}},
    {"tasks": {"task_objects_max": 3}},
]
UNWRITTEN = [
    {"flow": {"prefetch_threads": 9}},
    {"flow": {"window_bytes_max": 9}},
    {"failures": {"failed_rows_max": 9}},
    {"failures": {"failed_share_max": 0.5}},
    {"checkpoint_s": 9},
]


@for_each("changed", WRITTEN)
def test_settings_of_the_output_change_the_identity(changed):
    assert make_settings(**changed).identity() != make_settings().identity()


@for_each("changed", UNWRITTEN)
def test_other_settings_keep_the_identity(changed):
    assert make_settings(**changed).identity() == make_settings().identity()


def test_identity_is_json():
    identity = make_settings(read={"members": ("a", "b")}, mapping={"columns": ("p", "q")}).identity()
    assert json.loads(json.dumps(identity))["read"]["members"] == ["a", "b"]


@for_each("preset", [StreamSettings, TransformSettings])
def test_settings_survive_the_ledger(preset):
    settings = preset(
        read=ReadOptions(members=("a", "b")),
        mapping=MappingOptions(columns=("p", "q")),
        flow=FlowSettings(batch_rows_max=3, prefetch_threads=2),
        output=OutputSettings(output_filter="$[0]", checkpoint_s=1),
        failures=FailurePolicy("job"),
    )
    written = json.loads(json.dumps(settings.identity()))
    found = settings_from_identity(
        written, per_object=preset.per_object, flow={"prefetch_threads": 2}, checkpoint_s=1
    )
    assert found == settings


@for_each(
    ("unsupported", "why"),
    [
        ({"failures": FailurePolicy("object")}, "on_error object has no meaning here"),
        ({"output": OutputSettings(format="json")}, "one record per line, not json"),
        ({"output": OutputSettings(format="text", assemble="none")}, "one record per line, not text"),
    ],
)
def test_stream_refuses_settings_of_transforms(unsupported, why):
    with pytest.raises(ConfigError, match=why):
        StreamSettings(**unsupported)


@for_each(
    "name", ["batch_rows_max", "batch_bytes_max", "batch_delay_ms", "prefetch_bytes_max", "window_bytes_max"]
)
def test_flow_limits_must_be_positive(name):
    with pytest.raises(ConfigError, match=f"{name} must be .* of 1 or more|{name} must be a number above 0"):
        FlowSettings(**{name: 0})


@for_each(("name", "bad"), [("part_bytes_max", 0), ("part_rows_max", 0), ("checkpoint_s", -1)])
def test_output_limits_must_be_positive_except_checkpoint_s(name, bad):
    with pytest.raises(ConfigError, match=f"{name} must be .* or more"):
        OutputSettings(**{name: bad})
    assert OutputSettings(checkpoint_s=0).checkpoint_s == 0


def test_identity_has_exactly_the_settings_that_shape_the_output():
    """Otherwise a resumption would be refused without need, or mix two outputs."""
    base = StreamSettings()
    same = (
        replace(base, flow=FlowSettings(prefetch_bytes_max=1, prefetch_threads=1, window_bytes_max=1)),
        replace(base, output=OutputSettings(checkpoint_s=0)),
    )
    assert {str(s.identity()) for s in same} == {str(base.identity())}
    others = (
        replace(base, read=ReadOptions(header="names")),
        replace(base, mapping=MappingOptions(columns=(1,))),
        replace(base, mapping=MappingOptions(input_filter="$[1:]")),
        replace(base, mapping=MappingOptions(input_filter="$[1:]", slice_end="inclusive")),
        replace(base, flow=FlowSettings(batch_rows_max=1)),
        replace(base, flow=FlowSettings(batch_bytes_max=1)),
        replace(base, flow=FlowSettings(batch_delay_ms=1)),
        replace(base, output=OutputSettings(part_bytes_max=1)),
        replace(base, output=OutputSettings(join="input")),
    )
    assert len({str(s.identity()) for s in (base, *others)}) == 1 + len(others)


def test_invalid_filter_is_refused():
    with pytest.raises(ConfigError, match=r"JSONPath '\$\.\.a', character 2"):
        MappingOptions(input_filter="$..a")
    with pytest.raises(ConfigError, match="slice_end must be"):
        MappingOptions(slice_end="both")


@for_each("sequence", ["@objects", "@", ""])
def test_unknown_sequence_words_are_refused(sequence):
    with pytest.raises(ConfigError, match="@object, @member"):
        MappingOptions(sequence=sequence)


@for_each("sequence", [None, "@object", "@member"])
def test_sequence_end_needs_a_sequence_column(sequence):
    with pytest.raises(ConfigError, match="--sequence-end needs a --sequence"):
        MappingOptions(sequence=sequence, sequence_end="last")


def test_sequence_limit_is_not_in_the_identity():
    more = StreamSettings(flow=FlowSettings(sequences_live_max=7))
    assert more.identity() == StreamSettings().identity()
    with pytest.raises(ConfigError, match="sequences_live_max must be a whole number of 1 or more"):
        FlowSettings(sequences_live_max=0)


@for_each("output_format", get_args(OutputFormat))
def test_stream_has_a_part_suffix_for_every_format_that_it_accepts(output_format):
    output = OutputSettings(format=output_format)
    read = ReadOptions(format="v2" if output_format == "v2" else "auto")
    if output_format in PART_SUFFIXES:
        assert StreamSettings(read=read, output=output).output.format == output_format
    else:
        with pytest.raises(ConfigError, match=f"one record per line, not {output_format}"):
            StreamSettings(read=read, output=output)


def test_only_json_needs_an_output_per_object():
    assert set(get_args(OutputFormat)) - set(PART_SUFFIXES) == {"json"}
