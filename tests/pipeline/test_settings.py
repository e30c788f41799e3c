from dataclasses import replace

import pytest

from headrace.core.errors import ConfigError
from headrace.formats.read import ReadOptions
from headrace.pipeline.settings import FlowSettings, MappingOptions, OutputSettings, StreamSettings


@pytest.mark.parametrize(
    "name", ["batch_rows_max", "batch_bytes_max", "batch_delay_ms", "prefetch_bytes_max", "window_bytes_max"]
)
def test_bounds_of_the_flow_are_positive(name):
    with pytest.raises(ConfigError, match=f"{name} must be more than 0, not 0"):
        FlowSettings(**{name: 0})


@pytest.mark.parametrize(("name", "bad"), [("part_bytes_max", 0), ("part_rows_max", 0), ("checkpoint_s", -1)])
def test_bounds_of_the_output_are_positive_but_checkpoints_may_be_constant(name, bad):
    with pytest.raises(ConfigError, match=f"{name} must be at least"):
        OutputSettings(**{name: bad})
    assert OutputSettings(checkpoint_s=0).checkpoint_s == 0


def test_what_shapes_the_output_is_in_the_identity_and_what_does_not_is_not():
    """Else a resumption would be refused for nothing, or mix two outputs."""
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


def test_runs_from_before_there_were_filters_go_on():
    """A filter that keeps everything is not in what a ledger holds of the run."""
    mapping = StreamSettings().identity()["mapping"]
    assert mapping == {"columns": (), "text_column": None, "image_scale": 1 / 255}
    same = StreamSettings(mapping=MappingOptions(slice_end="inclusive")).identity()["mapping"]
    assert same == mapping


def test_a_filter_that_does_not_compile_is_refused():
    with pytest.raises(ConfigError, match=r"JSONPath '\$\.\.a', character 2"):
        MappingOptions(input_filter="$..a")
    with pytest.raises(ConfigError, match="slice_end must be"):
        MappingOptions(slice_end="both")


@pytest.mark.parametrize("sequence", ["@objects", "@", ""])
def test_words_for_sequences_that_are_not_known_are_refused(sequence):
    with pytest.raises(ConfigError, match="@object, @member"):
        MappingOptions(sequence=sequence)


@pytest.mark.parametrize("sequence", [None, "@object", "@member"])
def test_an_end_needs_a_column_that_names_the_sequence(sequence):
    with pytest.raises(ConfigError, match="--sequence-end is for sequences that a column tells of"):
        MappingOptions(sequence=sequence, sequence_end="last")


def test_a_run_without_sequences_has_the_identity_that_it_always_had():
    assert MappingOptions().identity().keys() == {"columns", "text_column", "image_scale"}
    assert MappingOptions(sequence="u", sequence_end="e").identity()["sequence_end"] == "e"


def test_how_many_sequences_may_live_is_no_part_of_a_runs_identity():
    more = StreamSettings(flow=FlowSettings(sequences_live_max=7))
    assert more.identity() == StreamSettings().identity()
    with pytest.raises(ConfigError, match="sequences_live_max must be more than 0"):
        FlowSettings(sequences_live_max=0)
