import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.block import Position
from headrace.core.errors import LedgerError
from headrace.pipeline.ledger import Counts
from headrace.storage.draft import Kept, KeptRange
from headrace.transforms.records import (
    Checkpoint,
    RetriedObject,
    ShardRecord,
    Spot,
    TaskRecord,
    repeated_bytes,
)

NUMBERS = st.integers(0, 2**40)
COUNTS = st.builds(Counts, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
SPOTS = st.builds(Spot, NUMBERS, NUMBERS, NUMBERS)
KEPT = st.builds(KeptRange, st.builds(Kept, st.text(max_size=9), NUMBERS, NUMBERS), NUMBERS, NUMBERS)
REASONS = st.dictionaries(st.text(max_size=9), NUMBERS, max_size=3)
SHARDS = st.builds(
    ShardRecord,
    index=NUMBERS,
    number=NUMBERS,
    counts=COUNTS,
    out_bytes=NUMBERS,
    begin=st.none() | SPOTS,
    end=st.none() | SPOTS,
    relative=st.booleans(),
    begin_bytes=NUMBERS,
    out=st.none() | KEPT,
    failed=st.none() | KEPT,
    failures=REASONS,
)
DONE = st.lists(SHARDS, max_size=3).map(tuple)


@given(st.builds(TaskRecord, NUMBERS, st.text(max_size=9), DONE, st.floats(0, 1e9)))
def test_a_tasks_record_comes_back(record):
    assert TaskRecord.from_json(record.to_json()) == record


@given(
    st.builds(
        Checkpoint,
        task=NUMBERS,
        done=DONE,
        entries=NUMBERS,
        record=NUMBERS,
        line=NUMBERS,
        byte=NUMBERS,
        counts=COUNTS,
        begin=st.none() | SPOTS,
        relative=st.booleans(),
        member_byte=NUMBERS,
        member=st.none() | st.text(max_size=9),
        begin_bytes=NUMBERS,
        out=st.none() | KEPT,
        failed=st.none() | KEPT,
        failures=REASONS,
    )
)
def test_a_checkpoint_comes_back(checkpoint):
    assert Checkpoint.from_json(checkpoint.to_json()) == checkpoint


def test_a_checkpoint_tells_where_to_go_on():
    checkpoint = Checkpoint(1, (), 5, record=7, line=8, byte=9, member="m", member_byte=512)
    assert checkpoint.position("u") == Position("u", "m", 7, 8, 9, 512)
    assert Spot.of(Position("u", record=1, line=2, byte=3)).position("u") == Position(
        "u", record=1, line=2, byte=3
    )


@pytest.mark.parametrize("kind", [TaskRecord, Checkpoint])
def test_another_versions_record_is_refused(kind):
    with pytest.raises(LedgerError, match="version 9"):
        kind.from_json(b'{"v": 9}')


@given(
    st.builds(
        RetriedObject,
        NUMBERS,
        NUMBERS,
        NUMBERS,
        REASONS,
        st.none() | st.builds(Kept, st.text(max_size=9), NUMBERS, NUMBERS),
        st.none() | st.builds(Kept, st.text(max_size=9), NUMBERS, NUMBERS),
    )
)
def test_a_retried_object_comes_back(retried):
    assert RetriedObject.from_json(retried.to_json()) == retried


@pytest.mark.parametrize(
    ("begins", "repeated"), [([], []), ([0, 5, 0, 5, 5], [0, 0, 0, 5, 5]), ([5, 5], [0, 5]), ([0, 0], [0, 0])]
)
def test_a_header_is_of_the_first_shard_that_has_one(begins, repeated):
    shards = [ShardRecord(0, n, Counts(), 9, begin_bytes=b) for n, b in enumerate(begins)]
    assert repeated_bytes(shards) == repeated
