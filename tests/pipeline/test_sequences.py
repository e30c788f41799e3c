import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.block import Block, Position
from headrace.core.errors import ConfigError, LimitError
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.formats.read import ReadOptions
from headrace.pipeline.feed import Batch, Feed
from headrace.pipeline.items import Cursor, ReadBlock, Replay
from headrace.pipeline.mapping import Mapper
from headrace.pipeline.sequences import Sequencer
from headrace.pipeline.settings import FlowSettings, MappingOptions

METADATA = ModelMetadata("m", inputs=(TensorSpec("x", "FP32", (-1, 1)),), max_batch_rows=4, steps=True)
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


def told(batch: Batch) -> list[str]:
    """Each row as ``id``, with ``^`` before where it begins its sequence and ``$`` behind where it ends it."""
    request = batch.request
    assert request is not None
    assert request["sequence_start"].dtype == request["sequence_end"].dtype == bool
    rows = zip(request["sequence_id"], request["sequence_start"], request["sequence_end"], strict=True)
    return [f"{'^' * bool(start)}{id}{'$' * bool(end)}" for id, start, end in rows]


BY_COLUMN = MappingOptions(sequence=0, sequence_end=1)


def test_rows_say_which_sequence_they_belong_to_and_begin_and_end_it():
    one, two = batches_of([block_of(["a,0,1", "b,0,2", "a,1,3", "a,0,4", "b,true,5", "a,,6"])], BY_COLUMN)
    assert told(one) == ["^a", "^b", "a$", "^a"]
    assert told(two) == ["b$", "a"]
    assert one.request["x"].tolist() == [[1.0], [2.0], [3.0], [4.0]]
    # An engine would take the begin of another a for the end of the one before, whatever waits for that.
    assert (one.cuts, two.cuts) == ((3,), ())
    assert not one.endings
    assert not two.endings


def test_a_record_that_fails_and_is_the_last_of_its_sequence_ends_it_all_the_same():
    one, two = batches_of(
        [block_of(["a,0,1", "b,0,2", "a,1,bad", "a,0,3", "a,0,4", "b,1,bad", "b,0,7", "a,0,8"])], BY_COLUMN
    )
    assert told(one) == ["^a$", "^b", "^a"]
    # b's last row was in the batch before, so that its end is told by itself, and before it begins again.
    assert two.endings == ("b",)
    assert told(two) == ["a", "^b", "a"]


def test_a_failed_record_begins_nothing():
    (batch,) = batches_of([block_of(["a,1,bad", "b,0,bad", "b,0,1"])], BY_COLUMN)
    assert told(batch) == ["^b"]
    assert batch.endings == ()


def test_a_batch_of_nothing_but_failed_records_may_still_end_sequences():
    _, batch = batches_of([block_of(["a,0,1", "b,0,1", "a,1,bad", "c,1,bad"])], BY_COLUMN, rows=2)
    assert batch.request is None
    assert batch.endings == ("a",)


def test_an_object_is_a_sequence_that_ends_where_the_next_one_begins():
    mapping = MappingOptions(sequence="@object")
    sequencer = Sequencer(METADATA, mapping, FlowSettings())
    blocks = [block_of(["1"], index=0), block_of(["2", "3"], start=1, index=0), block_of(["4", "5"], index=1)]
    a, b, c = (URI.format(i) for i in range(3))
    one, two = batches_of([*blocks, block_of(["6"], index=2)], mapping, sequencer=sequencer)
    assert told(one) == [f"^{a}", a, f"{a}$", f"^{b}"]
    assert told(two) == [f"{b}$", f"^{c}"]
    assert sequencer.finish() == (c,)
    assert sequencer.finish() == ()


def test_an_object_that_ended_with_a_batch_is_ended_before_the_next_one():
    mapping = MappingOptions(sequence="@object")
    one, two = batches_of([block_of(["1", "2"], index=0), block_of(["3"], index=1)], mapping, rows=2)
    assert (one.endings, two.endings) == ((), (URI.format(0),))
    assert told(two) == [f"^{URI.format(1)}"]


def test_the_same_object_again_in_another_version_is_another_sequence():
    mapping = MappingOptions(sequence="@object")
    again = block_of(["2"], index=0)
    again = ReadBlock(again.block, 1)
    (batch,) = batches_of([block_of(["1"], index=0), again], mapping)
    a = URI.format(0)
    assert told(batch) == [f"^{a}$", f"^{a}"]


def test_members_of_an_archive_are_sequences():
    mapping = MappingOptions(sequence="@member")
    members = [
        block_of(["1"], member="x", byte=512),
        block_of(["2"], member="y", byte=1024),
        block_of(["3"], member="y", byte=4096),
    ]
    (batch,) = batches_of(members, mapping)
    x, y = (f"{URI.format(0)}!{name}" for name in "xy")
    assert told(batch) == [f"^{x}$", f"^{y}$", f"^{y}"]
    (whole,) = batches_of(members, MappingOptions(sequence="@object"))
    assert [t.strip("^$") for t in told(whole)] == [URI.format(0)] * 3


def test_without_a_sequence_every_row_is_one_by_itself():
    (batch,) = batches_of([block_of(["1", "2", "bad"])], MappingOptions())
    assert batch.request["sequence_id"].tolist() == ["", ""]
    assert (batch.endings, batch.replay) == ((), None)


def test_more_sequences_than_may_be_unfinished_end_the_run_with_what_to_do():
    lines = ["a,0,1", "b,0,1", "a,1,1", "c,0,1", "d,0,1"]
    with pytest.raises(
        LimitError, match=r"record 4.*'d'.*2 that may.*--sequence-end.*--sequences-live-max"
    ) as raised:
        batches_of([block_of(lines)], BY_COLUMN, live_max=2)
    assert "0.csv" in str(raised.value)
    assert [told(b) for b in batches_of([block_of(lines)], BY_COLUMN, live_max=3)][1] == ["^d"]


def test_the_models_own_limit_counts_where_no_other_is_given():
    metadata = ModelMetadata("m", steps=True, sequences_live_max=1)
    sequencer = Sequencer(metadata, BY_COLUMN, FlowSettings())
    feed = Feed(Mapper(METADATA, BY_COLUMN, ReadOptions()), METADATA, FlowSettings(), sequencer)
    with pytest.raises(LimitError, match="the 1 that may"):
        feed.add(block_of(["a,0,1", "b,0,1", "c,0,1", "d,0,1"]), 0.0)


def test_a_model_without_a_step_has_no_sequences():
    with pytest.raises(ConfigError, match="has no step"):
        Sequencer(ModelMetadata("m"), BY_COLUMN, FlowSettings())


def test_a_model_with_an_input_of_that_name_cannot_be_told_of_sequences():
    taken = ModelMetadata("m", inputs=(TensorSpec("sequence_id", "INT64", (-1,)),), steps=True)
    with pytest.raises(ConfigError, match="has an input sequence_id"):
        Sequencer(taken, MappingOptions(), FlowSettings())


def test_a_replay_goes_back_to_the_batch_in_which_the_oldest_unfinished_sequence_began():
    lines = ["a,0,1", "b,0,1", "c,0,1", "a,1,1", "b,0,1", "c,0,1", "b,1,1", "c,0,1", "c,1,1", "d,1,1"]
    cursors = [b.end for b in batches_of([block_of(lines)], BY_COLUMN, rows=2)]
    replays = [b.replay for b in batches_of([block_of(lines)], BY_COLUMN, rows=2)]
    assert replays == [
        Replay(Cursor(), 2),  # a and b live, from the very start
        Replay(Cursor(), 4),  # b
        Replay(Cursor(), 6),
        Replay(cursors[0], 6),  # c alone, which began in the second batch
        None,
    ]


def test_a_replay_is_told_of_in_json():
    replay = Replay(Cursor(3, Position("memory://b/x", "m", 7, 1, 0, 512)), 10, 1)
    assert Replay.from_json(replay.to_json()) == replay


def sums(batches: list[Batch], states: dict[str, float]) -> list[list[float | None]]:
    """What a model that adds up answers; None is a row of a sequence that it does not have."""
    found: list[list[float | None]] = []
    for batch in batches:
        for id in batch.endings:
            assert states.pop(id, None) is not None, f"{id} is ended, and does not live"
        answers: list[float | None] = []
        if batch.request is not None:
            ended: set[str] = set()
            for row, text in enumerate(told(batch)):
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
                answers.append(states[id])
                if text.endswith("$"):
                    del states[id]
        found.append(answers)
    return found


ROWS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from("01"), st.sampled_from(["1", "2", "bad"])),
    min_size=1,
    max_size=60,
)


@settings(deadline=None)
@given(ROWS, st.integers(1, 7), st.integers(1, 9))
def test_after_any_batch_a_replay_makes_the_states_that_there_were(rows, batch_rows, block_rows):
    lines = [",".join(row) for row in rows]

    def blocks(first: int, stop: int) -> list[ReadBlock]:
        cuts = range(first, stop, block_rows)
        return [block_of(lines[at : min(at + block_rows, stop)], start=at) for at in cuts]

    whole = batches_of(blocks(0, len(lines)), BY_COLUMN, rows=batch_rows)
    expected_states: dict[str, float] = {}
    expected = sums(whole, expected_states)
    # What the rows say, added up one by one.
    plain: dict[str, float] = {}
    answers: list[float] = []
    for id, end, value in rows:
        if value != "bad":
            plain[id] = plain.get(id, 0.0) + float(value)
            answers.append(plain[id])
        if end == "1":
            plain.pop(id, None)
    assert [a for batch in expected for a in batch] == answers
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


def test_of_rows_that_are_sequences_by_themselves_a_batch_has_no_more_than_may_live():
    metadata = ModelMetadata("m", inputs=METADATA.inputs, max_batch_rows=4, steps=True, sequences_live_max=3)
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
