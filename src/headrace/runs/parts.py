"""The sink of numbered parts: encode batches, collect a part, publish it whole, then commit it.

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

from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.formats.contract import Encoder
from headrace.formats.read import is_file_name
from headrace.runs.items import Cursor, Replay, ScoredBatch
from headrace.runs.ledger import Ledger, PartsState
from headrace.runs.output import EncoderFactory, RecordOutput
from headrace.runs.output_settings import PART_SUFFIXES, ROWS_OF_CELLS, OutputFormat
from headrace.runs.partition_files import publish_partitions
from headrace.runs.records import Counts, PartRecord
from headrace.runs.settings import RunSettings
from headrace.storage.resolve import Stores

_log = logging.getLogger("headrace.runs")

PART_NAME: Final = re.compile(
    rf"([^/=]+=[^/]+/)*part-\d{{5,}}\.(failed\.jsonl|{'|'.join(set(PART_SUFFIXES.values()))})"
)
"""The names of published objects, also of those in the folders of partitions."""


def part_names(number: int, output_format: OutputFormat) -> tuple[str, str]:
    """Return the names of a part and of its failed records, below the destination."""
    name = f"part-{number:05d}"
    return f"{name}.{PART_SUFFIXES[output_format]}", f"{name}.failed.jsonl"


class PartBytes:
    """The bytes of a part in memory, and how many of its pieces a checkpoint holds."""

    def __init__(self, before: list[bytes] | None = None) -> None:
        self._pieces = list(filter(None, before or ()))
        self._kept = len(self._pieces)
        self.nbytes = sum(map(len, self._pieces))

    def write(self, data: bytes) -> None:
        """Append bytes."""
        if data:
            self._pieces.append(data)
            self.nbytes += len(data)

    @property
    def has_news(self) -> bool:
        """True if there are bytes since the last checkpoint."""
        return self._kept < len(self._pieces)

    def take_news(self) -> bytes:
        """Return the bytes since the last checkpoint, for the next one."""
        news = b"".join(self._pieces[self._kept :])
        self._kept = len(self._pieces)
        return news

    def take_all(self) -> list[bytes]:
        """Return all pieces and forget them."""
        pieces, self._pieces = self._pieces, []
        return pieces


class PartsSink:
    """The sink of one run. One thread writes; another publishes, one part behind.

    `write` may raise the error of an earlier part's publishing. Call `finish` at the end. After an
    error, call `checkpoint` and `abort`: committed parts stay.

    Args:
        ledger: The ledger of the destination.
        make_encoder: See `EncoderFactory`.
        settings: The settings of the run.
        clock: The clock of checkpoints.
        state: The parts of an earlier process, or of an earlier append.
    """

    def __init__(
        self,
        ledger: Ledger,
        make_encoder: EncoderFactory,
        settings: RunSettings,
        *,
        clock: Clock,
        state: PartsState | None = None,
        make_empty: Callable[[], Encoder | None] | None = None,
    ) -> None:
        self._ledger = ledger
        self._make_encoder = make_encoder
        self._make_empty = make_empty
        self._settings = settings
        self._output_settings = settings.output
        self.drops_open_part = settings.output.is_written_whole
        """True if a part in progress cannot be stored, as with Parquet: parts are committed whole."""
        self._clock = clock
        self._attempt = uuid.uuid4().hex
        self._publisher = ThreadPoolExecutor(1, "headrace-publisher")
        self._publishing: Future[None] | None = None
        self._clears_leftovers = state is not None
        """True until the first part of a resumption is published. With batches closed by delay, an
        earlier process may have written it with other records.
        """
        self.parts = state.published if state else 0
        last = state.last if state else None
        self.total = last.total if last else Counts()
        """The counts of the finished parts."""
        self.cursor = last.cursor if last else Cursor()
        self._replay: Replay | None = last.replay if last else None
        self._checkpointed_s = self._clock.now()
        self._checkpoint = 0
        self._output = self._open_part(state) if state and state.checkpoints else self._new_part()

    def _new_part(self) -> RecordOutput[PartBytes]:
        self._checkpoint = 0
        self._checkpointed_s = self._clock.now()
        return RecordOutput(
            make_encoder=self._make_encoder,
            out=PartBytes(),
            failed=PartBytes(),
            policy=self._settings.failures,
        )

    def _open_part(self, state: PartsState) -> RecordOutput[PartBytes]:
        """Return the part in progress, with the bytes of its checkpoints."""
        last = state.checkpoints[-1]
        kept = [self._ledger.part_bytes(record) for record in state.checkpoints]
        self._checkpoint = last.checkpoint
        self.total = self.total.minus(last.in_part)
        return RecordOutput(
            make_encoder=self._make_encoder,
            out=PartBytes([out for out, _ in kept]),
            failed=PartBytes([failed for _, failed in kept]),
            begin_bytes=last.begin_bytes,
            counts=last.in_part,
            failures=last.failures,
            policy=self._settings.failures,
        )

    def write(self, batch: ScoredBatch) -> None:
        """Add a batch. Publish the part if the batch fills it.

        Raises TooManyFailuresError for a failed record if the settings allow none.
        """
        output = self._output
        output.add(batch.spans, batch.outputs)
        self.cursor, self._replay = batch.end, batch.replay
        limits = self._output_settings
        full = output.out.nbytes + output.failed.nbytes >= limits.part_bytes_max
        if full or output.counts.rows_out >= limits.part_rows_max:
            self.end_part()
        elif self._clock.now() - self._checkpointed_s >= limits.checkpoint_s:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Store the part in progress, unless its format does not allow it."""
        self._checkpointed_s = self._clock.now()
        output = self._output
        has_news = output.out.has_news or output.failed.has_news
        if self.drops_open_part or not has_news or not output.is_consistent:
            return
        self._wait_published()
        self._checkpoint += 1
        self._ledger.checkpoint_part(self._record(), output.out.take_news(), output.failed.take_news())
        self._checkpointed_s = self._clock.now()

    def _record(self) -> PartRecord:
        output = self._output
        return PartRecord(
            part=self.parts,
            checkpoint=self._checkpoint,
            cursor=self.cursor,
            total=self.committed,
            in_part=output.counts,
            attempt=self._attempt,
            out_bytes=output.out_bytes,
            begin_bytes=output.begin_bytes,
            failures=dict(output.failures),
            replay=self._replay,
        )

    def end_part(self) -> None:
        """Publish the part, unless it is empty, and begin the next one."""
        output = self._output
        # The first part has the header even without records.
        output.end(self._make_empty if self.committed == Counts() else None)
        if not output.out.nbytes and not output.failed.nbytes:
            return
        record = self._record()
        record.in_part.check(f"part {record.part}")
        self._wait_published()
        out, failed = output.out.take_all(), output.failed.take_all()
        self._publishing = self._publisher.submit(self._publish, record, output.partitions, out, failed)
        self.total = record.total
        self.parts += 1
        self._output = self._new_part()

    def _publish(
        self,
        record: PartRecord,
        partitions: Mapping[str, int],
        out: list[bytes],
        failed: list[bytes],
    ) -> None:
        """Write the data, then the record that commits it. The publisher thread runs it."""
        store, destination = self._ledger.store, self._ledger.destination
        out_name, failed_name = part_names(record.part, self._output_settings.format)
        if self._output_settings.partition_by:
            self._publish_partitions(record.part, out_name, partitions, out)
        elif out:
            out.reverse()
            with store.writer(destination + out_name) as writer:
                while out:
                    writer.write(out.pop())  # written data is released at once
        elif self._clears_leftovers:
            store.delete(destination + out_name)
        if failed:
            store.put(destination + failed_name, b"".join(failed))
        elif self._clears_leftovers:
            store.delete(destination + failed_name)
        self._clears_leftovers = False
        self._ledger.commit_part(record)
        at = {"part": record.part, "part_bytes": record.out_bytes, "records": record.total.records_in}
        _log.info("part published", extra=at)

    def _publish_partitions(self, part: int, name: str, sizes: Mapping[str, int], out: list[bytes]) -> None:
        publisher = self._ledger.draft_publisher()
        try:
            publish_partitions(self._ledger, publisher, part, name=name, sizes=sizes, read=lambda: out)
            publisher.flush()
        finally:
            publisher.close()

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
    def committed(self) -> Counts:
        """The counts of all written batches. After `finish` they are all in the ledger."""
        return self.total.plus(self._output.counts)

    def abort(self) -> None:
        """Stop after an error. A running publication completes; committed parts stay."""
        self._publisher.shutdown(wait=True, cancel_futures=True)


def check_folder(destination: str, stores: Stores, settings: RunSettings) -> None:
    """Raise ConfigError if the destination has the name of a file and is not an existing folder.

    A run cannot write one file: it commits whole parts, and a resumption continues after the last
    one.
    """
    if destination.endswith("/") or not is_file_name(destination):
        return
    if next(iter(stores.for_uri(destination).list(f"{destination}/")), None) is not None:
        return
    folder, slash, name = destination.rpartition("/")
    other = f"{folder}{slash}{name.partition('.')[0]}/"
    raise ConfigError(
        f"{destination} is the name of a file, but a run writes a folder of parts, so that it can be "
        f"resumed: write {other} instead (or {destination}/ for a folder of this name). "
        f"{_one_file(destination, other, settings)}For one output file per input file, use headrace transform"
    )


def _one_file(destination: str, folder: str, settings: RunSettings) -> str:
    """Return the sentence with the command that joins the parts, if their format can be joined."""
    suffix, header = PART_SUFFIXES[settings.output.format], settings.output.header
    if settings.output.is_written_whole:
        return ""
    may_have_header = settings.output.format in ("auto", *ROWS_OF_CELLS)
    has_header = may_have_header and (settings.read.has_column_names if header is None else header)
    command = "awk 'FNR > 1 || NR == 1'" if has_header else "cat"
    copy = " (copy them to a disk first)" if "://" in destination else ""
    name = destination.rpartition("/")[2] if copy else destination
    unknown = may_have_header and header is None and settings.read.header == "auto"
    either = " (if they have a header: awk 'FNR > 1 || NR == 1' instead of cat)" if unknown else ""
    return f"To join the parts afterwards{copy}: {command} {folder}part-?????.{suffix} > {name}{either}. "
