"""Encoders of outputs that are divided into folders by the values of columns, as Hive names them.

An output in progress holds the bytes of all its partitions, in frames: the length of the folder's name,
the length of the data, the name, and the data. `split_frames` reads them.

Hive's names are described in the documentation of Spark ("Partition Discovery") and of Hive
(`FileUtils.escapePathName`): ``day=2026-11-27/country=DE``. Null and empty text have one name.
"""

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from headrace.core.errors import ConfigError, CorruptError, DataError
from headrace.core.tensor import Array
from headrace.formats.contract import BlockSelection, Encoder
from headrace.formats.parquet import ParquetEncoder, filling_rows
from headrace.formats.place import Arrange

PARTITIONS_MAX: Final = 1_000
"""Limit of partitions of one output: of an object or a part."""
NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
_NAME_BYTES_MAX: Final = 200
"""Limit of a folder's name; file systems allow 255 bytes."""
_ESCAPED: Final = re.compile("[\x01-\x1f\x7f\"#%'*/:=?\\\\{\\[\\]^]")
_FRAME: Final = struct.Struct("<HQ")

RowFolders = tuple[Sequence[str], NDArray[np.int64]]
"""The folders of some rows, and for each row the index of its folder."""
FindFolders = Callable[[Sequence[BlockSelection], Mapping[str, Array]], RowFolders]
"""A function that returns the folders of records and their outputs. Raises DataError for a bad value."""


def folder_name(column: str, value: str | None) -> str:
    """Return the name of the folder of a column's value. Raises DataError for a value that is too long."""
    name = f"{_escape(column)}={_escape(value) if value else NULL_FOLDER}"
    if len(name.encode()) > _NAME_BYTES_MAX:
        raise DataError(f"column {column!r}: the name of its partition has more than {_NAME_BYTES_MAX} bytes")
    return name


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


class PartitionedEncoder(Encoder):
    """An encoder of an output of several partitions: a file for each folder, in frames.

    `encode` raises ConfigError for more than PARTITIONS_MAX folders.

    Args:
        find_folders: A function that returns the folders of rows.
        arrange: The function that returns the columns to write, or None for all outputs.
    """

    def __init__(self, find_folders: FindFolders, arrange: Arrange | None) -> None:
        self._find_folders = find_folders
        self._arrange = arrange
        self.sizes: dict[str, int] = {}
        """The size of each partition's file in bytes, by its folder."""
        self.framing_bytes = 0
        """The bytes of all frames that are not data."""

    def _folders(self, selections: Sequence[BlockSelection], outputs: Mapping[str, Array]) -> RowFolders:
        folders, numbers = self._find_folders(selections, outputs)
        if len(self.sizes.keys() | set(folders)) > PARTITIONS_MAX:
            raise ConfigError(
                f"the records up to {_last_position(selections)} have more than {PARTITIONS_MAX:,} "
                "partitions in one output: choose columns with fewer values for --partition-by"
            )
        return folders, numbers

    def _columns(
        self, selections: Sequence[BlockSelection], outputs: Mapping[str, Array]
    ) -> Mapping[str, Array]:
        """Return the columns to write, found once for all partitions."""
        return outputs if self._arrange is None else self._arrange(selections, outputs)

    def _frame(self, folder: str, data: bytes) -> bytes:
        """Return the data in a frame, and count it. Without data there is no frame."""
        self.sizes[folder] = self.sizes.get(folder, 0) + len(data)
        if not data:
            return b""
        name = folder.encode()
        self.framing_bytes += _FRAME.size + len(name)
        return b"".join((_FRAME.pack(len(name), len(data)), name, data))


class PartitionedTextEncoder(PartitionedEncoder):
    """An encoder of partitions of text. The encoder `inner` has no state between records."""

    def __init__(self, inner: Encoder, find_folders: FindFolders, arrange: Arrange | None) -> None:
        super().__init__(find_folders, arrange)
        self._inner = inner

    @override
    def encode(self, selections: Sequence[BlockSelection], outputs: Mapping[str, Array]) -> bytes:
        folders, numbers = self._folders(selections, outputs)
        columns = self._columns(selections, outputs)
        encoded = [(folders[n], self._rows(selections, columns, rows)) for n, rows in _groups(numbers)]
        return b"".join(
            self._frame(folder, data if folder in self.sizes else self._inner.begin() + data)
            for folder, data in encoded
        )

    def _rows(
        self, selections: Sequence[BlockSelection], columns: Mapping[str, Array], rows: NDArray[np.int64]
    ) -> bytes:
        if len(rows) == sum(map(len, selections)):
            return self._inner.encode(selections, columns)
        some = {name: data[rows] for name, data in columns.items()}
        return self._inner.encode(_take(selections, rows), some)


class PartitionedTableEncoder(PartitionedEncoder):
    """An encoder of partitions that are tables, each a file of `make_table`.

    Rows are divided when there are `rows_max`, or with the row that fills `bytes_max`. If all tables then
    hold more than `held_bytes_max`, the largest one ends its row group. So the bytes of the files do not
    depend on the batches.
    """

    def __init__(
        self,
        make_table: Callable[[], ParquetEncoder],
        find_folders: FindFolders,
        arrange: Arrange | None,
        *,
        rows_max: int = 8192,
        bytes_max: int = 16 << 20,
        held_bytes_max: int = 128 << 20,
    ) -> None:
        super().__init__(find_folders, arrange)
        self._make_table = make_table
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._held_bytes_max = held_bytes_max
        self._layout = make_table()
        """A table without rows, which makes the batches of all partitions."""
        self._tables: dict[str, ParquetEncoder] = {}
        self._numbers: dict[str, int] = {}
        """The number of each folder."""
        self._undivided: list[tuple[Any, NDArray[np.int64], NDArray[np.int64]]] = []
        """Batches with the size and the folder of each row."""
        self._rows = self._bytes = 0

    @override
    def encode(self, selections: Sequence[BlockSelection], outputs: Mapping[str, Array]) -> bytes:
        folders, numbers = self._folders(selections, outputs)
        batches = self._layout.batches(selections, self._columns(selections, outputs))
        numbers = np.array([self._numbers.setdefault(f, len(self._numbers)) for f in folders])[numbers]
        frames: list[bytes] = []
        first = 0
        for batch, sizes in batches:
            frames += self._add(batch, sizes, numbers[first : first + len(sizes)])
            first += len(sizes)
        return b"".join(frames)

    def _add(self, batch: Any, sizes: NDArray[np.int64], numbers: NDArray[np.int64]) -> Iterator[bytes]:
        cumulative = np.cumsum(sizes)
        at = 0
        while at < len(sizes):
            stop, nbytes = filling_rows(
                cumulative, at, self._rows_max - self._rows, self._bytes_max - self._bytes
            )
            self._undivided.append((batch.slice(at, stop - at), sizes[at:stop], numbers[at:stop]))
            self._rows += stop - at
            self._bytes += nbytes
            at = stop
            if self._rows >= self._rows_max or self._bytes >= self._bytes_max:
                yield from self._divide()

    def _divide(self) -> Iterator[bytes]:
        """Give the rows to their tables. Yield the frames of the row groups that they fill."""
        if not self._undivided:
            return
        from headrace.formats.arrow import pyarrow  # noqa: PLC0415 - an optional dependency

        batches, sizes, numbers = zip(*self._undivided, strict=True)
        self._undivided, self._rows, self._bytes = [], 0, 0
        batch = pyarrow.Table.from_batches(batches).combine_chunks().to_batches()[0]
        sizes, folders = np.concatenate(sizes), list(self._numbers)
        for number, rows in _groups(np.concatenate(numbers)):
            folder = folders[number]
            if folder not in self._tables:
                self._tables[folder] = table = self._make_table()
                yield self._frame(folder, table.begin())
            # The rows are copied: a slice would keep those of the other partitions in memory.
            yield self._frame(folder, self._tables[folder].hold(batch.take(rows), sizes[rows]))
        while sum(table.held_bytes for table in self._tables.values()) > self._held_bytes_max:
            folder = max(self._tables, key=lambda folder: self._tables[folder].held_bytes)
            yield self._frame(folder, self._tables[folder].end_row_group())

    @override
    def finish(self) -> bytes:
        frames = list(self._divide())
        return b"".join([*frames, *(self._frame(folder, t.finish()) for folder, t in self._tables.items())])


def split_frames(chunks: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield the data of frames in pieces, each with its folder. Chunks may be cut at any byte.

    Raises CorruptError if the last frame is not whole.
    """
    rest, folder, left = b"", "", 0
    for chunk in chunks:
        data, at, rest = rest + chunk if rest else chunk, 0, b""
        while at < len(data):
            if left:
                piece = data[at : at + left]
                yield folder, piece
                left -= len(piece)
                at += len(piece)
                continue
            begin = at + _FRAME.size
            name_bytes, nbytes = _FRAME.unpack_from(data, at) if begin <= len(data) else (0, 0)
            if begin + name_bytes >= len(data):
                rest = data[at:]
                break
            folder, left = data[begin : begin + name_bytes].decode(), nbytes
            at = begin + name_bytes
    if rest or left:
        raise CorruptError("an output in progress ends within a frame", byte=0)


def _groups(numbers: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield each number with the indices of its rows, in order."""
    order = np.argsort(numbers, kind="stable")
    cuts = np.flatnonzero(np.diff(numbers[order])) + 1
    for rows in np.split(order, cuts):
        if len(rows):
            yield int(numbers[rows[0]]), rows


def _take(selections: Sequence[BlockSelection], rows: NDArray[np.int64]) -> list[BlockSelection]:
    """Return the rows with these ascending indices over all selections."""
    found: list[BlockSelection] = []
    first = 0
    for selection in selections:
        begin, end = np.searchsorted(rows, (first, first + len(selection)))
        if begin < end:
            chosen = selection.indices()[rows[begin:end] - first]
            start, stop = int(chosen[0]), int(chosen[-1]) + 1
            all_rows = stop - start == len(chosen)
            found.append(BlockSelection(selection.block, start, stop, None if all_rows else chosen))
        first += len(selection)
    return found


def _last_position(selections: Sequence[BlockSelection]) -> str:
    last = selections[-1]
    return str(last.block.position(int(last.indices()[-1])))
