"""Collect the output of a shard or part: predictions in order, failed records, and their counts.

The bytes of an output stay in memory, or go to a draft if they are many or must survive the process.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

import numpy as np

from headrace.core.block import Block, Failure, FailureKind
from headrace.core.errors import DataError, TooManyFailuresError
from headrace.core.tensor import Array
from headrace.formats.contract import BlockSelection, Encoder
from headrace.formats.failures import FailedRecord, failed_record_line
from headrace.formats.partition import PartitionedEncoder
from headrace.runs.failure_policy import FailurePolicy
from headrace.runs.items import ScoredSpan, selected_rows
from headrace.runs.records import Counts
from headrace.runs.settings import RunSettings
from headrace.storage.contract import ObjectInfo, Store
from headrace.storage.draft import (
    Draft,
    DraftPublisher,
    PersistedDraft,
    PersistedRange,
    open_draft,
    read_range,
)

EncoderFactory = Callable[[Mapping[str, Array], Block | None], Encoder]
"""A function that makes an output's encoder from its first predictions and their block."""
EmptyEncoderFactory = Callable[[ObjectInfo], Encoder | None]
"""A function that makes the encoder of an object's output without predictions; see `Encoders.make_empty`."""
BUFFER_BYTES_MAX: Final = 4 << 20
"""The size of an output from which on it goes to a draft."""
REASONS_MAX: Final = 100
"""The maximal number of separate reasons; further failures are counted together."""
OTHER_REASONS: Final = "other reasons"
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'')
_NUMBER: Final = re.compile(
    r"(?<![\w.])(?<!\.py:)[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.])(?! columns?\b| expected\b)"
)
_COLUMN: Final = re.compile(r'column \d+(?: \("[^"]*"\))?')
_REASON_CHARACTERS_MAX: Final = 200


class OutputBytes(Protocol):
    """The bytes of one output, or of its failed records."""

    @property
    def nbytes(self) -> int:
        """The number of bytes written."""
        ...

    def write(self, data: bytes) -> None:
        """Append bytes."""
        ...


B = TypeVar("B", bound=OutputBytes)


class RecordOutput(Generic[B]):
    """An output that is filled with scored records in order. Used by one thread.

    Args:
        make_encoder: See `EncoderFactory`.
        out: The predictions.
        failed: The lines of the failed records.
        writes_begin: Write the header before the first record. False if an earlier range has it.
        begin_bytes: Bytes that precede the first record in `out`, from an earlier process.
        counts: Counts of the records that are already in both outputs.
        failures: Numbers of failed records by reason.
        policy: `add` raises TooManyFailuresError for a failure if the policy allows none.
    """

    def __init__(
        self,
        *,
        make_encoder: EncoderFactory,
        out: B,
        failed: B,
        writes_begin: bool = True,
        begin_bytes: int = 0,
        counts: Counts | None = None,
        failures: Mapping[str, int] | None = None,
        policy: FailurePolicy,
    ) -> None:
        self.out = out
        self.failed = failed
        self.begin_bytes = begin_bytes
        self._writes_begin = writes_begin
        self.counts = counts or Counts()
        self.failures = Counter(failures or {})
        self.entries = 0
        """The number of records and failures that this process added."""
        self.is_consistent = True
        """False after an error within `add`: some of its records may be written."""
        self._policy = policy
        self._make_encoder = make_encoder
        self._encoder: Encoder | None = None

    @property
    def partitions(self) -> Mapping[str, int]:
        """The size of each partition by its folder; empty if the output is one file, or has no records."""
        return self._encoder.sizes if isinstance(self._encoder, PartitionedEncoder) else {}

    @property
    def out_bytes(self) -> int:
        """The size of the predictions in bytes, without the frames of partitions."""
        framing = self._encoder.framing_bytes if isinstance(self._encoder, PartitionedEncoder) else 0
        return self.out.nbytes - framing

    def add(self, spans: Sequence[ScoredSpan], outputs: Mapping[str, Array]) -> None:
        """Add consecutive records; row i of every output belongs to the i-th predicted record."""
        failures = [failure for span in spans for failure in span.failures]
        if failures:
            self._refuse(failures[0])
        self.is_consistent = False
        if failures:
            self._add_with_failures(spans, outputs)
        else:
            selections = [span.selection for span in spans if len(span.selection)]
            try:
                self._encode(selections, outputs)
            except DataError:
                self._add_with_failures(spans, outputs)
        self.is_consistent = True

    def _refuse(self, failure: Failure) -> None:
        """Raise TooManyFailuresError if the policy allows no failure."""
        if self._policy.on_error == "job":
            raise TooManyFailuresError(
                f"{failure.position}: a record failed, and on_error is job: {failure.why}"
            )

    def _add_with_failures(self, spans: Sequence[ScoredSpan], outputs: Mapping[str, Array]) -> None:
        """Write up to each failure, so that the failure gets its position in the output."""
        row = 0
        for span in spans:
            rows = selected_rows(span.selection)
            block = span.selection.block
            at = 0
            for failure in span.failures:
                cut = int(np.searchsorted(rows, block.index_of(failure.position.record)))
                self._add_rows(span, rows, slice(at, cut), outputs, row)
                at = cut
                self._add_failure(failure)
            self._add_rows(span, rows, slice(at, len(rows)), outputs, row)
            row += len(rows)

    def _add_rows(
        self, span: ScoredSpan, rows: Array, part: slice, outputs: Mapping[str, Array], base: int
    ) -> None:
        chosen = rows[part]
        if not len(chosen):
            return
        block = span.selection.block
        selection = BlockSelection(block, int(chosen[0]), int(chosen[-1]) + 1, chosen)
        rows_outputs = {n: data[base + part.start : base + part.stop] for n, data in outputs.items()}
        try:
            self._encode([selection], rows_outputs)
        except DataError as error:
            # The output filter selects a value that some record lacks: halve the rows to find the
            # record.
            if len(chosen) == 1:
                failure = block.failure(int(chosen[0]), FailureKind.FORMAT, str(error))
                self._refuse(failure)
                self._add_failure(failure)
                return
            middle = part.start + len(chosen) // 2
            self._add_rows(span, rows, slice(part.start, middle), outputs, base)
            self._add_rows(span, rows, slice(middle, part.stop), outputs, base)

    def _add_failure(self, failure: Failure) -> None:
        record = FailedRecord(failure, self.counts.rows_out, self.out_bytes)
        # The line is copied, because the JSON writer allocates 4 KiB for each.
        self.failed.write(bytes(memoryview(failed_record_line(record))))
        self.entries += 1
        is_broken = failure.kind is FailureKind.OBJECT
        self.counts = self.counts.plus(Counts(objects_broken=1) if is_broken else Counts(1, rows_failed=1))
        count_reason(self.failures, failure)

    def _encode(self, selections: Sequence[BlockSelection], outputs: Mapping[str, Array]) -> None:
        """Write and count the rows. On a DataError, none of them is written."""
        if not selections:
            return
        self.out.write(self._opened_encoder(outputs, selections[0].block).encode(selections, outputs))
        rows = sum(map(len, selections))
        self.entries += rows
        self.counts = self.counts.plus(Counts(rows, rows))

    def _opened_encoder(self, outputs: Mapping[str, Array], block: Block | None) -> Encoder:
        return self._begin(self._make_encoder(outputs, block)) if self._encoder is None else self._encoder

    def _begin(self, encoder: Encoder) -> Encoder:
        self._encoder = encoder
        begin = encoder.begin()
        # Otherwise an earlier process has written it.
        if self._writes_begin and not (self.counts.rows_out or self.begin_bytes):
            self.out.write(begin)
            self.begin_bytes = len(begin)
        return encoder

    def end(self, make_empty: Callable[[], Encoder | None] | None = None) -> None:
        """Finish the output.

        `make_empty` makes the encoder of an output without predictions, if it has any bytes.
        """
        if self._encoder is None and make_empty is not None:
            empty = make_empty()
            if empty is not None:
                self._begin(empty)
        if self._encoder is not None:
            self.out.write(self._encoder.finish())


def suppresses_output(settings: RunSettings, *, failed: bool) -> bool:
    """Return True if an object gets no output because of a failure in it."""
    return failed and settings.failures.on_error == "object"


class SpooledOutput:
    """The bytes of one output. Used by one thread at a time.

    Args:
        store: The store of the destination.
        draft_uri: The unique name of the draft, if one is needed.
        persisted: The part that an earlier process persisted.
        draft: A draft of a previous output, to append to.
    """

    def __init__(
        self,
        store: Store,
        draft_uri: str,
        *,
        persisted: PersistedRange | None = None,
        draft: Draft | None = None,
    ) -> None:
        self._store = store
        self._draft_uri = draft_uri
        self._buffer: list[bytes] = []
        self._buffer_bytes = 0
        self._draft = draft
        self._start = draft.nbytes if draft else 0
        if persisted is not None:
            self._draft = open_draft(store, draft_uri, persisted)

    @property
    def nbytes(self) -> int:
        """The number of bytes written."""
        return self._buffer_bytes + (self._draft.nbytes - self._start if self._draft else 0)

    def write(self, data: bytes) -> None:
        """Append bytes."""
        if not data:
            return
        if self._draft is not None and not self._buffer:
            self._draft.write(data)  # at once, while the bytes are in the processor's cache
            return
        self._buffer.append(data)
        self._buffer_bytes += len(data)
        if self._buffer_bytes > BUFFER_BYTES_MAX:
            self._spill()

    def _spill(self) -> Draft:
        if self._draft is None:
            self._draft = open_draft(self._store, self._draft_uri)
        for data in self._buffer:
            self._draft.write(data)
        self._buffer, self._buffer_bytes = [], 0
        return self._draft

    def chunks(self) -> Iterator[bytes]:
        """Yield all bytes, which stay."""
        draft = self.persisted_draft()
        yield from self._buffer if draft is None else read_range(self._store, draft.full_range)

    def persisted_draft(self) -> PersistedDraft | None:
        """Return the draft, with all bytes persisted; None if they are in memory."""
        return None if self._draft is None else self._draft.persist()

    def persist(self) -> PersistedRange | None:
        """Persist all bytes. Return their range in the draft, or None without bytes."""
        if not self.nbytes:
            return None
        persisted = self._spill().persist()
        return PersistedRange(persisted, self._start, persisted.nbytes)

    def release(self) -> Draft | None:
        """Return the draft for the next output, which then closes it. None without a draft."""
        draft, self._draft = self._draft, None
        return draft

    def publish(self, uri: str, publisher: DraftPublisher) -> PersistedDraft | None:
        """Publish the output as object `uri`: a large one at once, a small one together with others.

        Return the persisted draft, which stays, if there is one.
        """
        if self._draft is not None:
            return self._spill().publish(uri)
        publisher.put(uri, b"".join(self._buffer))
        self._buffer, self._buffer_bytes = [], 0
        return None

    def close(self) -> None:
        """Release the draft; its persisted part stays. Further calls do nothing."""
        if self._draft is not None:
            self._draft.close()


def count_reason(counts: Counter[str], failure: Failure) -> None:
    """Count a failure by its reason, or as OTHER_REASONS once there are REASONS_MAX reasons."""
    reason = reason_of(failure)
    known = reason in counts or len(counts) < REASONS_MAX
    counts[reason if known else OTHER_REASONS] += 1


def quote_hint(failure: Failure, read_format: str) -> str:
    """Return a sentence for messages if a quote in a CSV record is probably not closed; else nothing.

    The first line of such a record has an odd number of quotes, and the record goes on below it.
    """
    first_line, newline, _ = failure.raw.partition(b"\n")
    if read_format not in ("auto", "csv") or not newline or first_line.count(b'"') % 2 == 0:
        return ""
    where = failure.position
    return f"A quote that is opened in line {where.line:,} of {where.object} is probably not closed. "


def reason_of(failure: Failure) -> str:
    """Return a failure's kind and message in general form.

    Its object and quoted values become "…". Numbers become N, except column numbers, counts, and the
    lines of a model's code.
    """
    why = failure.why.splitlines()[0] if failure.why else ""
    for name in filter(None, (failure.position.object, failure.position.member)):
        why = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "…", why)
    columns: list[str] = _COLUMN.findall(why)
    why = _NUMBER.sub("N", _QUOTED.sub('"…"', _COLUMN.sub("\0", why)))
    for column in columns:
        why = why.replace("\0", column, 1)
    return f"{failure.kind.value}: {why}"[:_REASON_CHARACTERS_MAX]
