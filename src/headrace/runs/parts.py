"""The sink of a stream: encode batches, collect a part, publish it whole, then commit it.

`ScoredBatch`es in source order become ``DEST/part-00000.csv`` and, for failed records,
``DEST/part-00000.failed.jsonl``. A part ends at the batch that fills it, so its bytes depend on the
source and the settings alone, however often the run is killed. Listed parts are always whole.
"""

import logging
import re
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from headrace.core.block import Block
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import CountMismatchError
from headrace.core.tensor import Array
from headrace.formats.contract import Encoder
from headrace.formats.failures import failure_line
from headrace.runs.items import Cursor, Replay, ScoredBatch
from headrace.runs.part_ledger import Counts, Ledger, LedgerMark, ResumeState
from headrace.runs.settings import TABLES, OutputFormat, OutputSettings
from headrace.storage.contract import Store

_log = logging.getLogger("headrace.runs")

PART_SUFFIXES: Final[Mapping[OutputFormat, str]] = {
    "auto": "csv",
    "csv": "csv",
    "jsonl": "jsonl",
    "text": "txt",
    "parquet": "parquet",
    "arrow": "arrow",
}
"""The end of a part's name by its format."""
PART_NAME = re.compile(rf"part-\d{{5,}}\.(failed\.jsonl|{'|'.join(PART_SUFFIXES.values())})")
"""The names of published objects."""

PartEncoderFactory = Callable[[Mapping[str, Array], Block | None], Encoder]
"""Returns the encoder of a part for its first predictions and their block."""


class Sink:
    """The sink of one run. One thread writes; another publishes, one part behind.

    `write` may raise the error of an earlier part's publishing. Call `finish` at the end. After an
    error, call `checkpoint` and `abort`: committed parts stay.
    """

    def __init__(
        self,
        store: Store,
        destination: str,
        ledger: Ledger,
        make_encoder: PartEncoderFactory,
        settings: OutputSettings,
        *,
        state: ResumeState | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._destination = destination
        self._ledger = ledger
        self._make_encoder = make_encoder
        self._settings = settings
        self._resumable_parts = settings.format not in TABLES
        self._suffix = PART_SUFFIXES[settings.format]
        self._clock = clock or SystemClock()
        self._attempt = uuid.uuid4().hex
        self._publisher = ThreadPoolExecutor(1, "headrace-publisher")
        self._publishing: Future[None] | None = None
        self._clears_leftovers = state is not None
        """True until the first part of a resumption is published. With batches closed by delay, an
        earlier process may have written it with other records.
        """
        self.parts = 0
        self.total = Counts()
        """The counts of the finished parts."""
        self.cursor = Cursor()
        self._replay: Replay | None = None
        self._open_part()
        if state and state.last:
            self._restore(state)

    def _open_part(self) -> None:
        self._encoder: Encoder | None = None
        self._out: list[bytes] = []
        self._failed: list[bytes] = []
        self._out_bytes = 0
        self._kept = (0, 0)  # the numbers of items in _out and _failed that checkpoints hold
        self._checkpoint = 0
        self._in_part = Counts()
        self._checkpointed_s = self._clock.now()

    def _restore(self, state: ResumeState) -> None:
        """Continue after the last commit, with the bytes of the unfinished part."""
        assert state.last is not None
        self.total, self.cursor = state.last.total, state.last.cursor
        self._replay = state.last.replay
        self.parts = state.last.part + (0 if state.checkpoints else 1)
        if not state.checkpoints:
            return
        for mark in state.checkpoints:
            out, failed = self._ledger.checkpoint_bytes(mark)
            self._out += [out] if out else []
            self._failed += [failed] if failed else []
            self._out_bytes += len(out) + len(failed)
        self._checkpoint = state.last.checkpoint
        self._in_part = state.last.in_part
        self.total = self.total.minus(self._in_part)
        self._kept = (len(self._out), len(self._failed))

    def write(self, batch: ScoredBatch) -> None:
        """Add a batch. Publish the part if the batch fills it."""
        if batch.rows:
            self._append_rows(batch)
        if batch.failures:
            # The lines are joined to a copy, because orjson allocates 4 KiB for each.
            lines = b"".join(map(failure_line, batch.failures))
            self._failed.append(lines)
            self._out_bytes += len(lines)
        broken = batch.broken
        self._in_part = self._in_part.plus(
            Counts(batch.entries - broken, batch.rows, len(batch.failures) - broken, broken)
        )
        self.cursor, self._replay = batch.end, batch.replay
        full = self._out_bytes >= self._settings.part_bytes_max
        if full or self._in_part.rows_out >= self._settings.part_rows_max:
            self.end_part()
        elif self._clock.now() - self._checkpointed_s >= self._settings.checkpoint_s:
            self.checkpoint()

    def _append_rows(self, batch: ScoredBatch) -> None:
        if self._encoder is None:
            self._encoder = self._make_encoder(batch.outputs, batch.selections[0].block)
            begin = self._encoder.begin()
            if not self._in_part.rows_out:  # a resumed part already has its beginning
                self._append(begin)
        self._append(self._encoder.encode(batch.selections, batch.outputs))

    def _append(self, data: bytes) -> None:
        if data:
            self._out.append(data)
            self._out_bytes += len(data)

    def checkpoint(self) -> None:
        """Store the unfinished part. Parquet does not support it: its parts are committed whole."""
        self._checkpointed_s = self._clock.now()
        kept_out, kept_failed = self._kept
        if not self._resumable_parts or (kept_out == len(self._out) and kept_failed == len(self._failed)):
            return
        self._wait_published()
        self._checkpoint += 1
        mark = self._mark()
        out, failed = b"".join(self._out[kept_out:]), b"".join(self._failed[kept_failed:])
        self._ledger.checkpoint(mark, out, failed)
        self._kept = (len(self._out), len(self._failed))
        self._checkpointed_s = self._clock.now()

    def _mark(self) -> LedgerMark:
        return LedgerMark(
            part=self.parts,
            checkpoint=self._checkpoint,
            cursor=self.cursor,
            total=self.total.plus(self._in_part),
            in_part=self._in_part,
            attempt=self._attempt,
            part_bytes=self._out_bytes,
            replay=self._replay,
        )

    def end_part(self) -> None:
        """Publish the part, unless it is empty, and begin the next one."""
        if not self._out and not self._failed:
            return
        if self._encoder is not None:
            self._append(self._encoder.finish())
        mark = self._mark()
        _check_counts(mark)
        self._wait_published()
        self._publishing = self._publisher.submit(self._publish, mark, self._out, self._failed)
        self.total = mark.total
        self.parts += 1
        self._open_part()

    def _publish(self, mark: LedgerMark, out: list[bytes], failed: list[bytes]) -> None:
        """Write the data, then the record that commits it. The publisher thread runs it."""
        name = f"{self._destination}part-{mark.part:05d}"
        if out:
            out.reverse()
            with self._store.writer(f"{name}.{self._suffix}") as writer:
                while out:
                    writer.write(out.pop())  # written data is released at once
        elif self._clears_leftovers:
            self._store.delete(f"{name}.{self._suffix}")
        if failed:
            self._store.put(f"{name}.failed.jsonl", b"".join(failed))
        elif self._clears_leftovers:
            self._store.delete(f"{name}.failed.jsonl")
        self._clears_leftovers = False
        self._ledger.commit_part(mark)
        at = {"part": mark.part, "part_bytes": mark.part_bytes, "records": mark.total.records_in}
        _log.info("part published", extra=at)

    def _wait_published(self) -> None:
        if self._publishing is not None:
            # This raises at every call: nothing after a failed part may be kept, not even as a
            # checkpoint.
            self._publishing.result()
            self._publishing = None

    def finish(self, *, end: bool) -> None:
        """Wait until everything is committed. With `end`, publish the last part first."""
        if end:
            self.end_part()
        self._wait_published()
        self._publisher.shutdown()

    @property
    def drops_open_part(self) -> bool:
        """True if an unfinished part is lost, as with Parquet."""
        return not self._resumable_parts

    @property
    def committed(self) -> Counts:
        """The counts of all written batches. After `finish` they are all in the ledger."""
        return self.total.plus(self._in_part)

    def abort(self) -> None:
        """Stop after an error. A running publication completes; committed parts stay."""
        self._publisher.shutdown(wait=True, cancel_futures=True)


def _check_counts(mark: LedgerMark) -> None:
    counts = mark.in_part
    if counts.records_in != counts.rows_out + counts.rows_failed:
        raise CountMismatchError(
            f"part {mark.part}",
            records_in=counts.records_in,
            out=counts.rows_out,
            failed=counts.rows_failed,
        )
