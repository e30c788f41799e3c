"""Sorting a listing of any length in bounded memory: sorted runs on disk, merged.

Most S3-compatible servers list in the order of a directory tree (``a/x`` before ``a-x``), not in that of the keys.
"""

import heapq
import pickle
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import IO

from headrace.storage.contract import ObjectInfo

RUN_ENTRIES_MAX = 50_000
"""Entries held in memory at once; about 15 MB."""
_MERGED_AT_ONCE = 1_000

_Row = tuple[str, int | None, str, float]


def sorted_by_uri(infos: Iterable[ObjectInfo], *, run_entries_max: int = RUN_ENTRIES_MAX) -> Iterator[ObjectInfo]:
    """The same infos, sorted by URI; of equal URIs one. Reads all of `infos` before it gives the first."""
    with ExitStack() as files:
        runs: list[IO[bytes]] = []
        rows: list[_Row] = []
        for info in infos:
            rows.append((info.uri, info.size_bytes, info.etag, info.modified_s))
            if len(rows) >= run_entries_max:
                runs.append(files.enter_context(_spilled(rows)))
                rows.clear()
        rows.sort(key=_uri)
        last: str | None = None
        for row in heapq.merge(*(_read(run) for run in runs), rows, key=_uri):
            if row[0] != last:
                last = row[0]
                yield ObjectInfo(*row)


def _uri(row: _Row) -> str:
    return row[0]


def _spilled(rows: list[_Row]) -> IO[bytes]:
    """One sorted run in a file that nobody else can see; written and read only by this function's module."""
    run: IO[bytes] = tempfile.TemporaryFile(prefix="headrace-list-")  # noqa: SIM115 - the caller closes it
    rows.sort(key=_uri)
    for start in range(0, len(rows), _MERGED_AT_ONCE):
        pickle.dump(rows[start : start + _MERGED_AT_ONCE], run, pickle.HIGHEST_PROTOCOL)
    run.seek(0)
    return run


def _read(run: IO[bytes]) -> Iterator[_Row]:
    while True:
        try:
            rows: list[_Row] = pickle.load(run)  # noqa: S301 - our own anonymous file, see _spilled
        except EOFError:
            return
        yield from rows
