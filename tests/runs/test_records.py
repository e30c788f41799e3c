import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.block import Position
from headrace.core.errors import LedgerError
from headrace.runs.part_ledger import Counts
from headrace.runs.records import (
    RetriedObject,
    ShardPosition,
    ShardRecord,
    TaskCheckpoint,
    TaskRecord,
    repeated_bytes,
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


@given(st.builds(TaskRecord, NUMBERS, st.text(max_size=9), DONE, st.floats(0, 1e9)))
def test_task_record_round_trips(record):
    assert TaskRecord.from_json(record.to_json()) == record


@given(
    st.builds(
        TaskCheckpoint,
        task=NUMBERS,
        done=DONE,
        entries=NUMBERS,
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
    checkpoint = TaskCheckpoint(1, (), 5, record=7, line=8, byte=9, member="m", member_byte=512)
    assert checkpoint.position("u") == Position("u", "m", 7, 8, 9, 512)
    assert ShardPosition.from_position(Position("u", record=1, line=2, byte=3)).position("u") == Position(
        "u", record=1, line=2, byte=3
    )


@for_each("kind", [TaskRecord, TaskCheckpoint])
def test_record_of_another_version_is_refused(kind):
    with pytest.raises(LedgerError, match="version 9"):
        kind.from_json(b'{"v": 9}')


@given(
    st.builds(
        RetriedObject,
        NUMBERS,
        NUMBERS,
        NUMBERS,
        REASONS,
        st.none() | st.builds(PersistedDraft, st.text(max_size=9), NUMBERS, NUMBERS),
        st.none() | st.builds(PersistedDraft, st.text(max_size=9), NUMBERS, NUMBERS),
    )
)
def test_retried_object_round_trips(retried):
    assert RetriedObject.from_json(retried.to_json()) == retried


@for_each(
    ("begin_bytes", "repeated"),
    [([], []), ([0, 5, 0, 5, 5], [0, 0, 0, 5, 5]), ([5, 5], [0, 5]), ([0, 0], [0, 0])],
)
def test_only_the_first_header_counts(begin_bytes, repeated):
    shards = [ShardRecord(0, n, Counts(), 9, begin_bytes=b) for n, b in enumerate(begin_bytes)]
    assert repeated_bytes(shards) == repeated
