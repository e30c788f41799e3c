import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.block import Block, Position
from headrace.core.errors import ConfigError, LimitError
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.formats.read_options import ReadOptions
from headrace.runs.feed import Batch, Feed
from headrace.runs.items import Cursor, ReadBlock, Replay
from headrace.runs.mapping import Mapper
from headrace.runs.sequences import Sequencer
from headrace.runs.settings import FlowSettings, MappingOptions

METADATA = ModelMetadata("m", inputs=(TensorSpec("x", "FP32", (-1, 1)),), max_batch_rows=4, is_stateful=True)
URI = "memory://b/{}.csv"


def block_of(
    lines: list[str], *, start: int = 0, index: int = 0, member: str | None = None, byte: int = 0
) -> ReadBlock:
    data = "".join(f"{line}\n" for line in lines).encode()
    ends = np.cumsum([len(line) + 1 for line in lines], dtype=np.int64) - 1
    starts = np.array([end - len(line) for end, line in zip(ends, lines, strict=True)], np.int64)
    first = Position(URI.format(index), member, record=start, member_byte=byte)
    return ReadBlock(Block(first, data, starts, ends), index)


def batches_of(
    blocks: list[ReadBlock],
    mapping: MappingOptions,
    *,
    rows: int = 4,
    live_max: int | None = None,
    sequencer: Sequencer | None = None,
) -> list[Batch]:
    flow = FlowSettings(batch_rows_max=rows, sequences_live_max=live_max)
    sequencer = sequencer or Sequencer(METADATA, mapping, flow)
    feed = Feed(Mapper(METADATA, mapping, ReadOptions()), METADATA, flow, sequencer)
    found = [batch for block in blocks for batch in feed.add(block, 0.0)]
    rest = feed.flush(0.0)
    return [*found, rest] if rest else found


def row_marks(batch: Batch) -> list[str]:
    """Return each row as ``id``, with ``^`` before a start and ``$`` after an end."""
    request = batch.request
    assert request is not None
    assert request["sequence_start"].dtype == request["sequence_end"].dtype == bool
    rows = zip(request["sequence_id"], request["sequence_start"], request["sequence_end"], strict=True)
    return [f"{'^' * bool(start)}{id}{'$' * bool(end)}" for id, start, end in rows]


BY_COLUMN = MappingOptions(sequence=0, sequence_end=1)


def test_rows_have_sequence_id_start_and_end():
    one, two = batches_of([block_of(["a,0,1", "b,0,2", "a,1,3", "a,0,4", "b,true,5", "a,,6"])], BY_COLUMN)
    assert row_marks(one) == ["^a", "^b", "a$", "^a"]
    assert row_marks(two) == ["b$", "a"]
    assert one.request["x"].tolist() == [[1.0], [2.0], [3.0], [4.0]]
    # An engine would take the start of a new "a" for the end of the old one, despite waiting
    # requests.
    assert (one.cuts, two.cuts) == ((3,), ())
    assert not one.endings
    assert not two.endings


def test_failed_last_record_ends_its_sequence():
    one, two = batches_of(
        [block_of(["a,0,1", "b,0,2", "a,1,bad", "a,0,3", "a,0,4", "b,1,bad", "b,0,7", "a,0,8"])], BY_COLUMN
    )
    assert row_marks(one) == ["^a$", "^b", "^a"]
    # The last row of b was in the previous batch, so its end is separate and precedes its new
    # start.
    assert two.endings == ("b",)
    assert row_marks(two) == ["a", "^b", "a"]


def test_failed_record_starts_no_sequence():
    (batch,) = batches_of([block_of(["a,1,bad", "b,0,bad", "b,0,1"])], BY_COLUMN)
    assert row_marks(batch) == ["^b"]
    assert batch.endings == ()


def test_batch_of_failures_may_end_sequences():
    _, batch = batches_of([block_of(["a,0,1", "b,0,1", "a,1,bad", "c,1,bad"])], BY_COLUMN, rows=2)
    assert batch.request is None
    assert batch.endings == ("a",)


def test_object_sequence_ends_at_the_next_object():
    mapping = MappingOptions(sequence="@object")
    sequencer = Sequencer(METADATA, mapping, FlowSettings())
    blocks = [block_of(["1"], index=0), block_of(["2", "3"], start=1, index=0), block_of(["4", "5"], index=1)]
    a, b, c = (URI.format(i) for i in range(3))
    one, two = batches_of([*blocks, block_of(["6"], index=2)], mapping, sequencer=sequencer)
    assert row_marks(one) == [f"^{a}", a, f"{a}$", f"^{b}"]
    assert row_marks(two) == [f"{b}$", f"^{c}"]
    assert sequencer.finish() == (c,)
    assert sequencer.finish() == ()


def test_object_sequence_ends_before_the_next_batch():
    mapping = MappingOptions(sequence="@object")
    one, two = batches_of([block_of(["1", "2"], index=0), block_of(["3"], index=1)], mapping, rows=2)
    assert (one.endings, two.endings) == ((), (URI.format(0),))
    assert row_marks(two) == [f"^{URI.format(1)}"]


def test_new_version_of_an_object_is_a_new_sequence():
    mapping = MappingOptions(sequence="@object")
    again = block_of(["2"], index=0)
    again = ReadBlock(again.block, 1)
    (batch,) = batches_of([block_of(["1"], index=0), again], mapping)
    a = URI.format(0)
    assert row_marks(batch) == [f"^{a}$", f"^{a}"]


def test_archive_members_are_sequences():
    mapping = MappingOptions(sequence="@member")
    members = [
        block_of(["1"], member="x", byte=512),
        block_of(["2"], member="y", byte=1024),
        block_of(["3"], member="y", byte=4096),
    ]
    (batch,) = batches_of(members, mapping)
    x, y = (f"{URI.format(0)}!{name}" for name in "xy")
    assert row_marks(batch) == [f"^{x}$", f"^{y}$", f"^{y}"]
    (whole,) = batches_of(members, MappingOptions(sequence="@object"))
    assert [t.strip("^$") for t in row_marks(whole)] == [URI.format(0)] * 3


def test_without_sequences_every_row_is_a_sequence():
    (batch,) = batches_of([block_of(["1", "2", "bad"])], MappingOptions())
    assert batch.request["sequence_id"].tolist() == ["", ""]
    assert (batch.endings, batch.replay) == ((), None)


def test_too_many_unfinished_sequences_raise_with_advice():
    lines = ["a,0,1", "b,0,1", "a,1,1", "c,0,1", "d,0,1"]
    with pytest.raises(
        LimitError, match=r"record 4.*'d'.*limit of 2 .*--sequence-end.*--sequences-live-max"
    ) as raised:
        batches_of([block_of(lines)], BY_COLUMN, live_max=2)
    assert "0.csv" in str(raised.value)
    assert [row_marks(b) for b in batches_of([block_of(lines)], BY_COLUMN, live_max=3)][1] == ["^d"]


def test_models_limit_is_the_default():
    metadata = ModelMetadata("m", is_stateful=True, sequences_live_max=1)
    sequencer = Sequencer(metadata, BY_COLUMN, FlowSettings())
    feed = Feed(Mapper(METADATA, BY_COLUMN, ReadOptions()), METADATA, FlowSettings(), sequencer)
    with pytest.raises(LimitError, match="the limit of 1 "):
        feed.add(block_of(["a,0,1", "b,0,1", "c,0,1", "d,0,1"]), 0.0)


def test_stateless_model_is_refused():
    with pytest.raises(ConfigError, match="declares no step"):
        Sequencer(ModelMetadata("m"), BY_COLUMN, FlowSettings())


def test_model_with_a_reserved_input_name_is_refused():
    taken = ModelMetadata("m", inputs=(TensorSpec("sequence_id", "INT64", (-1,)),), is_stateful=True)
    with pytest.raises(ConfigError, match="has an input sequence_id"):
        Sequencer(taken, MappingOptions(), FlowSettings())


def test_replay_begins_at_the_batch_of_the_oldest_live_sequence():
    lines = ["a,0,1", "b,0,1", "c,0,1", "a,1,1", "b,0,1", "c,0,1", "b,1,1", "c,0,1", "c,1,1", "d,1,1"]
    cursors = [b.end for b in batches_of([block_of(lines)], BY_COLUMN, rows=2)]
    replays = [b.replay for b in batches_of([block_of(lines)], BY_COLUMN, rows=2)]
    assert replays == [
        Replay(Cursor(), 2),  # a and b are live since the start
        Replay(Cursor(), 4),  # b
        Replay(Cursor(), 6),
        Replay(cursors[0], 6),  # only c, which began in the second batch
        None,
    ]


def test_replay_round_trips_through_json():
    replay = Replay(Cursor(3, Position("memory://b/x", "m", 7, 1, 0, 512)), 10, 1)
    assert Replay.from_json(replay.to_json()) == replay


def sums(batches: list[Batch], states: dict[str, float]) -> list[list[float | None]]:
    """Return the running sums of a model; None is a row of an unknown sequence."""
    found: list[list[float | None]] = []
    for batch in batches:
        for id in batch.endings:
            assert states.pop(id, None) is not None, f"{id} is ended, and does not live"
        responses: list[float | None] = []
        if batch.request is not None:
            ended: set[str] = set()
            for row, text in enumerate(row_marks(batch)):
                id = text.strip("^$")
                if row in batch.cuts:
                    ended.clear()
                assert not (text.startswith("^") and id in ended)
                ended |= {id} if text.endswith("$") else set()
                if text.startswith("^"):
                    assert id not in states, f"{id} begins, and lives"
                    states[id] = 0.0
                assert id in states
                states[id] += float(batch.request["x"][row, 0])
                responses.append(states[id])
                if text.endswith("$"):
                    del states[id]
        found.append(responses)
    return found


ROWS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from("01"), st.sampled_from(["1", "2", "bad"])),
    min_size=1,
    max_size=60,
)


@given(ROWS, st.integers(1, 7), st.integers(1, 9))
def test_replay_after_any_batch_rebuilds_the_states(rows, batch_rows, block_rows):
    lines = [",".join(row) for row in rows]

    def blocks(first: int, stop: int) -> list[ReadBlock]:
        cuts = range(first, stop, block_rows)
        return [block_of(lines[at : min(at + block_rows, stop)], start=at) for at in cuts]

    whole = batches_of(blocks(0, len(lines)), BY_COLUMN, rows=batch_rows)
    expected_states: dict[str, float] = {}
    expected = sums(whole, expected_states)
    # The running sums of the rows
    plain: dict[str, float] = {}
    responses: list[float] = []
    for id, end, value in rows:
        if value != "bad":
            plain[id] = plain.get(id, 0.0) + float(value)
            responses.append(plain[id])
        if end == "1":
            plain.pop(id, None)
    assert [a for batch in expected for a in batch] == responses
    assert expected_states == plain

    for at, batch in enumerate(whole[:-1]):
        states: dict[str, float] = {}
        sequencer = Sequencer(METADATA, BY_COLUMN, FlowSettings(batch_rows_max=batch_rows))
        stop = batch.end.position.record
        if batch.replay is not None:
            begin = batch.replay.begin.position.record if batch.replay.begin.position else 0
            assert batch.replay.records == stop - begin
            sums(batches_of(blocks(begin, stop), BY_COLUMN, rows=batch_rows, sequencer=sequencer), states)
        rest = batches_of(blocks(stop, len(lines)), BY_COLUMN, rows=batch_rows, sequencer=sequencer)
        assert sums(rest, states) == expected[at + 1 :]
        assert states == expected_states


def test_single_row_sequences_limit_the_batch():
    metadata = ModelMetadata(
        "m", inputs=METADATA.inputs, max_batch_rows=4, is_stateful=True, sequences_live_max=3
    )
    for mapping, batch_rows, expected in (
        (MappingOptions(), None, [3, 3, 1]),
        (MappingOptions(), 7, [7]),
        (MappingOptions(sequence="@object"), None, [4, 3]),
    ):
        flow = FlowSettings(batch_rows_max=batch_rows)
        feed = Feed(
            Mapper(metadata, mapping, ReadOptions()), metadata, flow, Sequencer(metadata, mapping, flow)
        )
        batches = [*feed.add(block_of(["1"] * 7), 0.0), feed.flush(0.0)]
        assert [batch.entries for batch in batches if batch] == expected
