import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.block import Position
from headrace.core.errors import CountMismatchError, LedgerError
from headrace.runs.items import Cursor, Replay
from headrace.runs.records import (
    VERSION,
    Counts,
    PartRecord,
    RetriedOutput,
    ShardPosition,
    ShardRecord,
    TaskCheckpoint,
    TaskRecord,
    repeated_bytes,
    sum_counts,
)
from headrace.storage.draft import PersistedDraft, PersistedRange

NUMBERS = st.integers(0, 2**40)
COUNTS = st.builds(Counts, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
POSITIONS = st.builds(ShardPosition, NUMBERS, NUMBERS, NUMBERS)
PERSISTED = st.builds(
    PersistedRange, st.builds(PersistedDraft, st.text(max_size=9), NUMBERS, NUMBERS), NUMBERS, NUMBERS
)
REASONS = st.dictionaries(st.text(max_size=9), NUMBERS, max_size=3)
SHARDS = st.builds(
    ShardRecord,
    index=NUMBERS,
    number=NUMBERS,
    counts=COUNTS,
    out_bytes=NUMBERS,
    begin=st.none() | POSITIONS,
    end=st.none() | POSITIONS,
    relative=st.booleans(),
    begin_bytes=NUMBERS,
    out=st.none() | PERSISTED,
    failed=st.none() | PERSISTED,
    failures=REASONS,
)
DONE = st.lists(SHARDS, max_size=3).map(tuple)
TEXTS = st.text(max_size=9)
SOURCE_POSITIONS = st.builds(Position, TEXTS, st.none() | TEXTS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
CURSORS = st.builds(Cursor, NUMBERS, st.none() | SOURCE_POSITIONS)


def test_counts_add_and_subtract():
    one, two = Counts(4, 3, 1, 1), Counts(10, 10, 0, 0)
    assert one.plus(two) == Counts(14, 13, 1, 1)
    assert one.plus(two).minus(two) == one
    assert sum_counts([one, two, two]) == Counts(24, 23, 1, 1)
    assert sum_counts([]) == Counts()


@for_each(
    ("counts", "has_failures"),
    [(Counts(3, 3), False), (Counts(3, 2, 1), True), (Counts(3, 3, 0, 1), True), (Counts(), False)],
)
def test_failed_records_and_broken_objects_are_failures(counts, has_failures):
    assert counts.has_failures is has_failures


@for_each("counts", [Counts(), Counts(3, 2, 1), Counts(3, 3, 0, 7)])
def test_equal_counts_pass_the_check(counts):
    counts.check("memory://out/")


@for_each("counts", [Counts(1), Counts(3, 3, 1), Counts(3, 2, 0, 1)])
def test_count_mismatch_names_the_place(counts):
    with pytest.raises(CountMismatchError, match=r"memory://out/") as caught:
        counts.check("memory://out/")
    assert str(counts.records_in) in str(caught.value)


@given(st.builds(TaskRecord, NUMBERS, TEXTS, DONE, st.floats(0, 1e9), st.none() | TEXTS))
def test_task_record_round_trips(record):
    assert TaskRecord.from_json(record.to_json()) == record


@given(
    st.builds(
        TaskCheckpoint,
        task=NUMBERS,
        done=DONE,
        is_inside=st.booleans(),
        record=NUMBERS,
        line=NUMBERS,
        byte=NUMBERS,
        counts=COUNTS,
        begin=st.none() | POSITIONS,
        relative=st.booleans(),
        member_byte=NUMBERS,
        member=st.none() | st.text(max_size=9),
        begin_bytes=NUMBERS,
        out=st.none() | PERSISTED,
        failed=st.none() | PERSISTED,
        failures=REASONS,
    )
)
def test_checkpoint_round_trips(checkpoint):
    assert TaskCheckpoint.from_json(checkpoint.to_json()) == checkpoint


def test_checkpoint_has_the_resume_position():
    position = Position("u", "m", 7, 8, 9, 512)
    checkpoint = TaskCheckpoint(1, (), is_inside=True, record=7, line=8, byte=9, member="m", member_byte=512)
    assert checkpoint.position("u") == position
    alone = TaskCheckpoint.at(position)
    assert (alone.position("u"), alone.is_inside, alone.done) == (position, True, ())
    assert ShardPosition.from_position(Position("u", record=1, line=2, byte=3)).position("u") == Position(
        "u", record=1, line=2, byte=3
    )


@given(
    st.builds(
        PartRecord,
        part=NUMBERS,
        checkpoint=NUMBERS,
        cursor=CURSORS,
        total=COUNTS,
        in_part=COUNTS,
        attempt=TEXTS,
        out_bytes=NUMBERS,
        begin_bytes=NUMBERS,
        failures=REASONS,
        replay=st.none() | st.builds(Replay, CURSORS, NUMBERS, NUMBERS),
    )
)
def test_part_record_round_trips(record):
    assert PartRecord.from_json(record.to_json()) == record


@for_each("kind", [TaskRecord, TaskCheckpoint, PartRecord, RetriedOutput])
@for_each("version", [VERSION - 1, VERSION + 1])
def test_record_of_another_version_is_refused(kind, version):
    with pytest.raises(LedgerError, match=f"version {version}, but this headrace writes version {VERSION}"):
        kind.from_json(b'{"v": %d}' % version)


@given(
    st.builds(
        RetriedOutput,
        NUMBERS,
        NUMBERS,
        NUMBERS,
        REASONS,
        st.none() | st.builds(PersistedDraft, TEXTS, NUMBERS, NUMBERS),
        st.none() | st.builds(PersistedDraft, TEXTS, NUMBERS, NUMBERS),
        NUMBERS,
    )
)
def test_retried_output_round_trips(retried):
    assert RetriedOutput.from_json(retried.to_json()) == retried


@for_each(
    ("begin_bytes", "repeated"),
    [([], []), ([0, 5, 0, 5, 5], [0, 0, 0, 5, 5]), ([5, 5], [0, 5]), ([0, 0], [0, 0])],
)
def test_only_the_first_header_counts(begin_bytes, repeated):
    shards = [ShardRecord(0, n, Counts(), 9, begin_bytes=b) for n, b in enumerate(begin_bytes)]
    assert repeated_bytes(shards) == repeated
