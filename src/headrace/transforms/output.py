"""What one shard's records become: predictions in order, failed records beside them, and the counts of both."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from headrace.core.block import Block, Failure, FailureKind
from headrace.core.errors import DataError
from headrace.core.tensor import Array
from headrace.formats.contract import Encoder, Piece
from headrace.formats.failures import FailedRecord, failed_record_line
from headrace.pipeline.items import ScoredSpan, piece_rows
from headrace.pipeline.ledger import Counts
from headrace.transforms.reasons import count_reason
from headrace.transforms.spool import Spool

EncoderFactory = Callable[[Mapping[str, Array], Block | None], Encoder]
"""Makes a shard's encoder, given its first outputs and their block."""


class ShardOutput:
    """Takes a shard's scored records, in order. One thread.

    Args:
        make_encoder: See `EncoderFactory`.
        out: For the predictions.
        failed: For the failed records' lines.
        begins: Whether what stands before the first record is to be written; not where a range before this one has it.
        begin_bytes: What stands before the first record in `out` already.
        counts: Of what is in both already.
        failures: How many records failed, by reason.
    """

    def __init__(
        self,
        *,
        make_encoder: EncoderFactory,
        out: Spool,
        failed: Spool,
        begins: bool = True,
        begin_bytes: int = 0,
        counts: Counts | None = None,
        failures: Mapping[str, int] | None = None,
    ) -> None:
        self.out = out
        self.failed = failed
        self.begin_bytes = begin_bytes
        self._begins = begins
        self.counts = counts or Counts()
        self.failures = Counter(failures or {})
        self.entries = 0
        """Records and failures that came, to this process."""
        self._make_encoder = make_encoder
        self._encoder: Encoder | None = None

    @property
    def has_failures(self) -> bool:
        """Whether anything of it failed: a record, or the rest of the object."""
        return bool(self.counts.rows_failed or self.counts.objects_broken)

    def add(self, spans: Sequence[ScoredSpan], outputs: Mapping[str, Array]) -> None:
        """Take consecutive records; row i of every output belongs to the i-th one that was predicted."""
        if any(span.failures for span in spans):
            self._add_apart(spans, outputs)
            return
        pieces = [span.piece for span in spans if len(span.piece)]
        try:
            self._encode(pieces, outputs)
        except DataError:
            self._add_apart(spans, outputs)
            return
        self._count(sum(map(len, pieces)), ())

    def _add_apart(self, spans: Sequence[ScoredSpan], outputs: Mapping[str, Array]) -> None:
        """Write up to each failure, so that where its prediction would have stood is known."""
        row = 0
        for span in spans:
            rows = piece_rows(span.piece)
            first = span.piece.block.first.record
            at = 0
            for failure in span.failures:
                cut = int(np.searchsorted(rows, failure.position.record - first))
                self._some(span, rows, slice(at, cut), outputs, row)
                at = cut
                self._fail(failure)
            self._some(span, rows, slice(at, len(rows)), outputs, row)
            row += len(rows)

    def _some(
        self, span: ScoredSpan, rows: Array, part: slice, outputs: Mapping[str, Array], base: int
    ) -> None:
        chosen = rows[part]
        if not len(chosen):
            return
        block = span.piece.block
        piece = Piece(block, int(chosen[0]), int(chosen[-1]) + 1, chosen)
        mine = {n: data[base + part.start : base + part.stop] for n, data in outputs.items()}
        try:
            self._encode([piece], mine)
        except DataError as error:
            # An output filter asks for what some record has not: halved, until it is alone.
            if len(chosen) == 1:
                self._fail(block.failure(int(chosen[0]), FailureKind.FORMAT, str(error)))
                return
            middle = part.start + len(chosen) // 2
            self._some(span, rows, slice(part.start, middle), outputs, base)
            self._some(span, rows, slice(middle, part.stop), outputs, base)
            return
        self._count(len(chosen), ())

    def _fail(self, failure: Failure) -> None:
        place = FailedRecord(failure, self.counts.rows_out, self.out.nbytes)
        self.failed.write(failed_record_line(place))
        self._count(0, (failure,))

    def _count(self, rows: int, failures: Sequence[Failure]) -> None:
        broken = sum(f.kind is FailureKind.OBJECT for f in failures)
        failed = len(failures) - broken
        self.entries += rows + len(failures)
        self.counts = self.counts.plus(Counts(rows + failed, rows, failed, broken))
        for failure in failures:
            count_reason(self.failures, failure)

    def _encode(self, pieces: Sequence[Piece], outputs: Mapping[str, Array]) -> None:
        if not pieces:
            return
        self.out.write(self._started(outputs, pieces[0].block).encode(pieces, outputs))

    def _started(self, outputs: Mapping[str, Array], block: Block | None) -> Encoder:
        if self._encoder is None:
            self._encoder = self._make_encoder(outputs, block)
            begin = self._encoder.begin()
            if self._begins and not self.counts.rows_out:  # else it was begun by an earlier process
                self.out.write(begin)
                self.begin_bytes = len(begin)
        return self._encoder

    def end(self, nothing: Mapping[str, Array] | None) -> None:
        """No more records come. `nothing` are the model's outputs for none, for a format that writes even these."""
        if self._encoder is None and nothing is not None:
            self._started(nothing, None)
        if self._encoder is not None:
            self.out.write(self._encoder.finish())

    def close(self) -> None:
        """Let go of what is under way; what was kept stays."""
        self.out.close()
        self.failed.close()
