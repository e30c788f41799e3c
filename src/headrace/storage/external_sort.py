"""Sort a listing of any length in bounded memory: sorted runs on disk, then a merge.

Most S3-compatible servers list in the order of a directory tree (``a/x`` before ``a-x``), not in
the order of the keys.
"""

import heapq
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import IO

import orjson

from headrace.storage.contract import ObjectInfo

RUN_ENTRIES_MAX = 50_000
"""Entries in memory at once, about 15 MB."""
_ROWS_PER_LINE = 1_000

_Row = tuple[str, int | None, str, float]


def sort_by_uri(
    infos: Iterable[ObjectInfo], *, run_entries_max: int = RUN_ENTRIES_MAX
) -> Iterator[ObjectInfo]:
    """Yield the infos sorted by URI, without duplicate URIs.

    Reads all of `infos` before the first yield.
    """
    with ExitStack() as files:
        runs: list[IO[bytes]] = []
        rows: list[_Row] = []
        for info in infos:
            rows.append((info.uri, info.size_bytes, info.etag, info.modified_s))
            if len(rows) >= run_entries_max:
                runs.append(files.enter_context(_spill(rows)))
                rows.clear()
        rows.sort(key=_row_uri)
        last: str | None = None
        for row in heapq.merge(*(_read(run) for run in runs), rows, key=_row_uri):
            if row[0] != last:
                last = row[0]
                yield ObjectInfo(*row)


def _row_uri(row: _Row) -> str:
    return row[0]


def _spill(rows: list[_Row]) -> IO[bytes]:
    """Return one sorted run in an anonymous file, `_ROWS_PER_LINE` rows a line."""
    run: IO[bytes] = tempfile.TemporaryFile(prefix="headrace-list-")  # noqa: SIM115 - the caller closes it
    rows.sort(key=_row_uri)
    for start in range(0, len(rows), _ROWS_PER_LINE):
        run.write(orjson.dumps(rows[start : start + _ROWS_PER_LINE], option=orjson.OPT_APPEND_NEWLINE))
    run.seek(0)
    return run


def _read(run: IO[bytes]) -> Iterator[_Row]:
    for line in run:
        yield from orjson.loads(line)
