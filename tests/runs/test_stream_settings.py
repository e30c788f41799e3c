from dataclasses import replace

import pytest

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.formats.read import ReadOptions
from headrace.runs.stream_settings import FlowSettings, MappingOptions, OutputSettings, StreamSettings


@for_each(
    "name", ["batch_rows_max", "batch_bytes_max", "batch_delay_ms", "prefetch_bytes_max", "window_bytes_max"]
)
def test_flow_limits_must_be_positive(name):
    with pytest.raises(ConfigError, match=f"{name} must be more than 0, not 0"):
        FlowSettings(**{name: 0})


@for_each(("name", "bad"), [("part_bytes_max", 0), ("part_rows_max", 0), ("checkpoint_s", -1)])
def test_output_limits_must_be_positive_except_checkpoint_s(name, bad):
    with pytest.raises(ConfigError, match=f"{name} must be at least"):
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


def test_identity_is_unchanged_without_a_filter():
    """A filter that keeps everything is not in the ledger of a run."""
    mapping = StreamSettings().identity()["mapping"]
    assert mapping == {"columns": (), "text_column": None, "image_scale": 1 / 255}
    same = StreamSettings(mapping=MappingOptions(slice_end="inclusive")).identity()["mapping"]
    assert same == mapping


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


def test_identity_is_unchanged_without_sequences():
    assert MappingOptions().identity().keys() == {"columns", "text_column", "image_scale"}
    assert MappingOptions(sequence="u", sequence_end="e").identity()["sequence_end"] == "e"


def test_sequence_limit_is_not_in_the_identity():
    more = StreamSettings(flow=FlowSettings(sequences_live_max=7))
    assert more.identity() == StreamSettings().identity()
    with pytest.raises(ConfigError, match="sequences_live_max must be more than 0"):
        FlowSettings(sequences_live_max=0)
