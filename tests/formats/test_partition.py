"""Tests of partitioned outputs: names of folders, frames, and the rows and row groups of each partition."""

import io
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.block import Position
from headrace.core.errors import ConfigError, CorruptError, DataError
from headrace.formats.contract import BlockSelection
from headrace.formats.csv_encode import CsvEncoder
from headrace.formats.encode import output_columns
from headrace.formats.line import JsonLinesFormat
from headrace.formats.parquet import ArrowEncoder, ParquetEncoder
from headrace.formats.partition import (
    PartitionedTableEncoder,
    PartitionedTextEncoder,
    folder_name,
    split_frames,
)


def select_records(count):
    text = b"".join(b"%d\n" % number for number in range(count))
    (block,) = JsonLinesFormat().blocks([text], Position("memory://in/a.jsonl"))
    return BlockSelection(block, 0, count)


def by_remainder(divisor):
    """Return a function that finds the folder of each record by the remainder of its output `y`."""

    def find_folders(selections, outputs):
        present, numbers = np.unique(outputs["y"] % divisor, return_inverse=True)
        return [f"r={int(value)}/" for value in present], numbers

    return find_folders


def text_encoder(divisor):
    return PartitionedTextEncoder(
        CsvEncoder(output_columns({"y": np.zeros(1)}), header=True), by_remainder(divisor), None
    )


def table_encoder(divisor, kind=ParquetEncoder, **options):
    columns = output_columns({"y": np.zeros(1)})
    return PartitionedTableEncoder(lambda: kind(columns, **options), by_remainder(divisor), None)


def encode(encoder, count, cuts=()):
    """Return the chunks of an output with the numbers below `count`, encoded in calls cut at `cuts`."""
    whole, numbers = select_records(count), np.arange(count, dtype=np.float64)
    chunks = [encoder.begin()]
    for start, stop in pairwise((0, *cuts, count)):
        chunks.append(encoder.encode([BlockSelection(whole.block, start, stop)], {"y": numbers[start:stop]}))
    return [*chunks, encoder.finish()]


def files(chunks):
    found = defaultdict(bytes)
    for folder, data in split_frames(chunks):
        found[folder] += data
    return dict(found)


# Folders


@for_each(
    ("value", "name"),
    [
        ("2026-11-27", "c=2026-11-27"),
        ("New York", "c=New York"),
        ("Genève 🏔", "c=Genève 🏔"),
        ("a/b:c%d=e", "c=a%2Fb%3Ac%25d%3De"),
        ("..", "c=.."),
        ("\n\x7f[x]", "c=%0A%7F%5Bx%5D"),
        ("", "c=__HIVE_DEFAULT_PARTITION__"),
        (None, "c=__HIVE_DEFAULT_PARTITION__"),
    ],
)
def test_folder_has_the_escaped_value(value, name):
    assert folder_name("c", value) == name


def test_name_of_the_column_is_escaped_too():
    assert folder_name("a/b", "1") == "a%2Fb=1"


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40))
def test_pyarrow_reads_every_value_back(value):
    folders = pa.schema([("c", pa.string())])
    hive = ds.HivePartitioning(folders, segment_encoding="uri")
    found = ds.get_partition_keys(hive.parse(f"{folder_name('c', value)}/part-00000.csv"))
    assert found == {"c": value}


def test_long_value_fails_its_record():
    assert folder_name("c", "x" * 198)
    with pytest.raises(DataError, match="column 'c': the name of its partition has more than 200 bytes"):
        folder_name("c", "é" * 100)


# Frames


@given(st.integers(1, 60), st.integers(1, 5), st.lists(st.integers(1, 2000), max_size=8))
def test_frames_are_read_whatever_the_chunks(count, divisor, cuts):
    encoder = text_encoder(divisor)
    data = b"".join(encode(encoder, count))
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    found = files([data[start:stop] for start, stop in pairwise(edges)])
    assert found == {
        f"r={rest}/": b"y\n" + b"".join(b"%d.0\n" % number for number in range(rest, count, divisor))
        for rest in range(min(divisor, count))
    }
    assert encoder.sizes == {folder: len(text) for folder, text in found.items()}
    assert encoder.framing_bytes == len(data) - sum(encoder.sizes.values())


@given(st.data())
def test_cut_frames_are_an_error(data):
    whole = b"".join(encode(text_encoder(2), 4))
    ends, at = {0}, 0
    for folder, piece in split_frames([whole]):
        at += 10 + len(folder) + len(piece)
        ends.add(at)
    cut = data.draw(st.integers(0, len(whole)).filter(lambda cut: cut not in ends))
    with pytest.raises(CorruptError):
        list(split_frames([whole[:cut]]))


# Encoders


@given(st.integers(1, 50), st.integers(1, 7), st.lists(st.integers(1, 49), max_size=4))
def test_files_do_not_depend_on_batches(count, divisor, cuts):
    cuts = sorted({cut for cut in cuts if cut < count})
    for make in (text_encoder, table_encoder):
        assert files(encode(make(divisor), count, cuts)) == files(encode(make(divisor), count))


@for_each(
    ("kind", "read"),
    [(ParquetEncoder, pq.read_table), (ArrowEncoder, lambda d: pa.ipc.open_file(d).read_all())],
)
def test_partitions_are_tables(kind, read):
    found = files(encode(table_encoder(3, kind), 10))
    values = {folder: read(io.BytesIO(data))["y"].to_pylist() for folder, data in found.items()}
    assert values == {"r=0/": [0, 3, 6, 9], "r=1/": [1, 4, 7], "r=2/": [2, 5, 8]}


def row_groups(data):
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]


@pytest.mark.parametrize("cuts", [(), (13,), (5, 16, 17)])
@pytest.mark.parametrize(
    ("limits", "groups"),
    [
        # 8 rows of 8 bytes fit. After 16 rows, 12 are held by the first table and 4 by the second.
        ({"rows_max": 8, "held_bytes_max": 70}, {"r=0/": [12, 6], "r=1/": [6]}),
        ({"bytes_max": 60, "held_bytes_max": 70}, {"r=0/": [12, 6], "r=1/": [6]}),
        ({"rows_max": 5, "held_bytes_max": 0}, {"r=0/": [4, 4, 4, 3, 3], "r=1/": [1, 1, 1, 2, 1]}),
        ({"rows_max": 5}, {"r=0/": [18], "r=1/": [6]}),
    ],
)
def test_largest_table_ends_its_row_group_when_all_hold_too_much(limits, groups, cuts):
    encoder = PartitionedTableEncoder(
        lambda: ParquetEncoder(output_columns({"y": np.zeros(1)})),
        lambda _, outputs: (["r=0/", "r=1/"], (outputs["y"] % 4 == 3).astype(np.int64)),
        None,
        **limits,
    )
    found = files(encode(encoder, 24, cuts))
    assert {folder: row_groups(data) for folder, data in found.items()} == groups


def test_failure_in_one_partition_leaves_all_unchanged():
    def find_folders(_, outputs):
        if 2.0 in outputs["y"]:
            raise DataError("no folder")
        return by_remainder(2)(_, outputs)

    columns = output_columns({"y": np.zeros(1)})
    encoder = PartitionedTableEncoder(lambda: ParquetEncoder(columns), find_folders, None)
    selection, chunks = select_records(4), [encoder.begin()]
    with pytest.raises(DataError):
        encoder.encode([selection], {"y": np.arange(4.0)})
    for row in (0, 1, 3):
        some = BlockSelection(selection.block, row, row + 1)
        chunks.append(encoder.encode([some], {"y": np.array([float(row)])}))
    found = files([*chunks, encoder.finish()])
    values = {folder: pq.read_table(io.BytesIO(data))["y"].to_pylist() for folder, data in found.items()}
    assert values == {"r=0/": [0.0], "r=1/": [1.0, 3.0]}


@for_each("make", [text_encoder, table_encoder])
def test_number_of_partitions_is_limited(make):
    assert len(files(encode(make(1000), 1000))) == 1000
    with pytest.raises(ConfigError, match=r"a\.jsonl, record 1000.*more than 1,000 partitions in one output"):
        encode(make(1001), 1001)
