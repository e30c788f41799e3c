import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.block import Block, Position
from headrace.formats.contract import BlockSelection
from headrace.formats.csv import CsvFormat
from headrace.formats.place import place_columns

CELLS = st.lists(st.sampled_from(["1", "", '"a\nb"', '"x"', "\r"]), min_size=1, max_size=3)


@given(
    rows=st.lists(CELLS, min_size=1, max_size=12),
    ends=st.lists(st.sampled_from(["\n", "\r\n", "\n\n"]), min_size=12, max_size=12),
    chosen=st.sets(st.integers(0, 11)),
    member=st.sampled_from([None, "m.csv"]),
)
def test_columns_are_the_positions_of_the_records(rows, ends, chosen, member):
    text = "".join(",".join(row) + end for row, end in zip(rows, ends, strict=False)).encode()
    for block in CsvFormat(block_bytes_max=20).blocks(
        [text], Position("s3://b/ä.csv", member, member_byte=5)
    ):
        some = np.array([i for i in range(len(block)) if i in chosen], np.int64)
        for selection in (BlockSelection(block, 0, len(block)), BlockSelection(block, 0, len(block), some)):
            picked = range(len(block)) if selection.rows is None else some.tolist()
            expected = [block.position(i) for i in picked]
            found = place_columns("position", [selection, selection])
            assert found["object"].tolist() == ["s3://b/ä.csv"] * 2 * len(expected)
            assert found["member"].tolist() == [member or ""] * 2 * len(expected)
            assert found["record"].tolist() == 2 * [p.record for p in expected]
            assert found["line"].tolist() == 2 * [p.line for p in expected]


@for_each(
    ("member", "times", "key"),
    [(None, None, "a.wav"), ("b.wav", None, "a.wav!b.wav"), (None, [500.0], "a.wav#t=0.5")],
)
def test_key_names_object_member_and_time(member, times, key):
    columns = {} if times is None else {"time_ms": np.array(times)}
    block = Block(Position("a.wav", member), b"x", np.array([0]), np.array([1]), columns)
    assert place_columns("key", [BlockSelection(block, 0, 1)])["key"].tolist() == [key]
    assert place_columns("input", [BlockSelection(block, 0, 1)])["input"].tolist() == [key]


def test_columns_without_records_have_their_types():
    found = place_columns("position", [])
    assert {name: (data.dtype.kind, len(data)) for name, data in found.items()} == {
        "object": ("O", 0),
        "member": ("O", 0),
        "record": ("i", 0),
        "line": ("i", 0),
    }
