"""Sorting a listing of any length in bounded memory: sorted runs on disk, merged.

Most S3-compatible servers list in the order of a directory tree (``a/x`` before ``a-x``), not in that of the keys.
"""

import heapq
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import IO

import orjson

from headrace.storage.contract import ObjectInfo

RUN_ENTRIES_MAX = 50_000
"""Entries held in memory at once; about 15 MB."""
_ROWS_A_LINE = 1_000

_Row = tuple[str, int | None, str, float]


def sorted_by_uri(
    infos: Iterable[ObjectInfo], *, run_entries_max: int = RUN_ENTRIES_MAX
) -> Iterator[ObjectInfo]:
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
    """One sorted run in an anonymous file, some rows a line."""
    run: IO[bytes] = tempfile.TemporaryFile(prefix="headrace-list-")  # noqa: SIM115 - the caller closes it
    rows.sort(key=_uri)
    for start in range(0, len(rows), _ROWS_A_LINE):
        run.write(orjson.dumps(rows[start : start + _ROWS_A_LINE], option=orjson.OPT_APPEND_NEWLINE))
    run.seek(0)
    return run


def _read(run: IO[bytes]) -> Iterator[_Row]:
    for line in run:
        yield from orjson.loads(line)
