"""Write scored batches to outputs: each record to the output of its own object.

Input: `ScoredBatch`es in source order, across objects. Output: ``KEY.out`` and ``KEY.out.failed``
of every whole object, persisted drafts of every range, and the ledger's record of every task.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from headrace.core.clock import Clock
from headrace.core.errors import CountMismatchError, TooManyFailuresError
from headrace.core.tensor import Array, ModelMetadata, dtype_of
from headrace.runs.items import ScoredBatch, ScoredSpan
from headrace.runs.ledger import DRAFTS, TransformLedger
from headrace.runs.output import EncoderFactory, ShardOutput
from headrace.runs.part_ledger import Counts
from headrace.runs.plan import TransformPlan
from headrace.runs.records import ShardRecord, TaskCheckpoint, TaskRecord
from headrace.runs.settings import TABLES, RunSettings
from headrace.runs.source import OpenShard, ShardEnd, TaskSource
from headrace.runs.spooled_output import SpooledOutput
from headrace.storage.draft import Draft, PersistedDraft, discard
from headrace.storage.local import LocalStore
from headrace.storage.publisher import DraftPublisher


class TaskSink:
    """The writer of a task run's output.

    One thread calls `write` for every batch, then `end` and `close`.

    Args:
        ledger: The ledger of the destination.
        plan: The plan of the tasks.
        open_shards: The shards of the source.
        source: The source, for the ends of shards.
        make_encoder: See `EncoderFactory`.
        metadata: The model's metadata.
        settings: The settings of the transform.
        attempt: A unique part of the names of this process's drafts.
        clock: The clock of checkpoints.
        on_task: Called with the record of every committed task, also of another process.
        replaces: The tasks replace earlier ones with wrong starts.
        region: The region of this worker.
        check: Raises an error if nothing may be written any more.
    """

    def __init__(
        self,
        ledger: TransformLedger,
        plan: TransformPlan,
        open_shards: Sequence[OpenShard],
        source: TaskSource,
        *,
        make_encoder: EncoderFactory,
        metadata: ModelMetadata,
        settings: RunSettings,
        attempt: str,
        clock: Clock,
        on_task: Callable[[TaskRecord], None],
        replaces: bool = False,
        region: str | None = None,
        check: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self._plan = plan
        self._open_shards = open_shards
        self._source = source
        self._make_encoder = make_encoder
        self._empty_outputs = _make_empty_outputs(metadata) if settings.output.format in TABLES else None
        self._settings = settings
        self._attempt = attempt
        self._clock = clock
        self._on_task = on_task
        self._replaces = replaces
        self._region = region
        self._check = check
        self._publisher = DraftPublisher(ledger.store, ledger.destination, drafts=ledger.uri(DRAFTS))
        self._open: dict[int, ShardOutput] = {}
        self._appends = isinstance(ledger.store, LocalStore)
        """True if drafts are files, to which the next range of an object can be appended."""
        self._previous: tuple[int, Draft] | None = None
        """The last finished shard and its draft."""
        self._objects_with_begin = set[int]()
        """Objects whose header a range of this process has written."""
        self._done: defaultdict[int, list[ShardRecord]] = defaultdict(list)
        for open_shard in open_shards:
            self._done[open_shard.task] += open_shard.done
        self._published_drafts: defaultdict[int, list[PersistedDraft]] = defaultdict(list)
        """Persisted drafts of published outputs by task; the last checkpoint still refers to them.
        """
        self._began_s = self._checkpointed_s = clock.now()

    def write(self, batch: ScoredBatch) -> None:
        """Write a batch, finish the shards that end with it, and write a checkpoint if one is due."""
        row = 0
        for index, group in groupby(batch.spans, key=_index_of):
            spans = list(group)
            rows = sum(len(span.selection) for span in spans)
            outputs = {name: data[row : row + rows] for name, data in batch.outputs.items()} if rows else {}
            row += rows
            output = self._output(index)
            output.add(spans, outputs)
            if output.has_failures:
                self._on_failure(self._open_shards[index])
        self._finish_ended()
        if self._clock.now() - self._checkpointed_s >= self._settings.output.checkpoint_s:
            self.checkpoint(batch)

    def _on_failure(self, open_shard: OpenShard) -> None:
        match self._settings.failures.on_error:
            case "job":
                raise TooManyFailuresError(
                    f"{self._plan.objects[open_shard.shard.index].info.uri}: a record failed, and on_error "
                    "is job"
                )
            case "object":
                self._source.skip(open_shard.shard.index)
            case _:
                pass

    def _output(self, index: int) -> ShardOutput:
        output = self._open.get(index)
        if output is not None:
            return output
        open_shard = self._open_shards[index]
        name = (
            f"task-{open_shard.task:05d}-{self._attempt}-{open_shard.shard.index}-{open_shard.shard.number}"
        )
        store, uri, resume = self._ledger.store, self._ledger.draft_uri(name), open_shard.resume
        output = self._open[index] = ShardOutput(
            make_encoder=self._make_encoder,
            out=SpooledOutput(
                store,
                f"{uri}.out",
                persisted=resume.out if resume else None,
                draft=self._previous_draft(index),
            ),
            failed=SpooledOutput(store, f"{uri}.failed", persisted=resume.failed if resume else None),
            writes_begin=open_shard.shard.index not in self._objects_with_begin,
            begin_bytes=resume.begin_bytes if resume else 0,
            counts=resume.counts if resume else None,
            failures=resume.failures if resume else None,
        )
        return output

    def _previous_draft(self, index: int) -> Draft | None:
        """Return the draft of the previous range if this process wrote it, to append to its file."""
        before, self._previous = self._previous, None
        if before is None:
            return None
        number, draft = before
        shard, last = self._open_shards[index].shard, self._open_shards[number].shard
        if number == index - 1 and (shard.index, shard.number) == (last.index, last.number + 1):
            return draft
        draft.close()
        return None

    def _finish_ended(self) -> None:
        """Finish every shard whose records are all written."""
        ended = self._source.shard_ends
        while ended:
            end = ended[0]
            output = self._output(end.open_shard)
            if output.entries != end.entries:
                return
            ended.popleft()
            self._finish(end, output)

    def _finish(self, end: ShardEnd, output: ShardOutput) -> None:
        open_shard = self._open_shards[end.open_shard]
        self._check()
        del self._open[end.open_shard]
        output.end(self._empty_outputs)
        counts, out_bytes = output.counts, output.out.nbytes
        _check_counts(self._plan.objects[open_shard.shard.index].info.uri, counts)
        record = ShardRecord(
            index=open_shard.shard.index,
            number=open_shard.shard.number,
            counts=counts,
            out_bytes=out_bytes,
            begin=end.begin,
            end=end.end,
            relative=end.relative,
            begin_bytes=output.begin_bytes,
            failures=dict(output.failures),
        )
        if open_shard.shard.is_whole:
            self._publish(open_shard, output)
        else:
            record = replace(record, out=output.out.persist(), failed=output.failed.persist())
            if output.begin_bytes:
                self._objects_with_begin.add(open_shard.shard.index)
            draft = output.out.release() if self._appends else None
            self._previous = (end.open_shard, draft) if draft is not None else None
        output.close()
        self._done[open_shard.task].append(record)
        if open_shard.ends_task:
            self._commit(open_shard.task)

    def _publish(self, open_shard: OpenShard, output: ShardOutput) -> None:
        planned, destination = self._plan.objects[open_shard.shard.index], self._ledger.destination
        if suppresses_output(self._settings, failed=output.has_failures):
            self._ledger.store.delete(destination + planned.output)
        else:
            self._publish_output(open_shard, output.out, destination + planned.output)
        if output.failed.nbytes:
            self._publish_output(open_shard, output.failed, destination + planned.failed)

    def _publish_output(self, open_shard: OpenShard, spooled: SpooledOutput, uri: str) -> None:
        draft = spooled.publish(uri, self._publisher)
        if draft is not None:
            self._published_drafts[open_shard.task].append(draft)

    def _discard_published_drafts(self, task: int) -> None:
        """Remove drafts that neither the task's record nor a checkpoint refers to any more."""
        for draft in self._published_drafts.pop(task, ()):
            discard(self._ledger.store, draft)

    def _commit(self, task: int) -> None:
        self._check()
        self._publisher.flush()
        elapsed_s = round(self._clock.now() - self._began_s, 6)
        record = TaskRecord(task, self._attempt, tuple(self._done.pop(task)), elapsed_s, self._region)
        self._began_s = self._checkpointed_s = self._clock.now()
        if self._replaces:
            self._ledger.replace_task(record)
        elif not self._ledger.commit_task(record):
            # Another worker committed the task first; its outputs have the same bytes.
            record = self._ledger.task(task) or record
        self._discard_published_drafts(task)
        self._on_task(record)

    def checkpoint(self, batch: ScoredBatch) -> None:
        """Persist the task in progress up to the end of `batch`."""
        self._checkpointed_s = self._clock.now()
        self._check()
        open_shard = self._open_shards[batch.end.index] if batch.end.index < len(self._open_shards) else None
        if open_shard is None:
            return
        done = self._done[open_shard.task]
        output, position = self._open.get(batch.end.index), batch.end.position
        resumable = self._settings.output.format not in TABLES
        self._publisher.flush()
        if output is None or position is None or not resumable:
            if done:
                self._ledger.checkpoint(TaskCheckpoint(open_shard.task, tuple(done)))
                self._discard_published_drafts(open_shard.task)
            return
        begin, relative = self._source.range_begins.get(batch.end.index, (None, False))
        entries = output.entries + (open_shard.resume.entries if open_shard.resume else 0)
        self._ledger.checkpoint(
            TaskCheckpoint(
                task=open_shard.task,
                done=tuple(done),
                entries=entries,
                record=position.record,
                line=position.line,
                byte=position.byte,
                counts=output.counts,
                begin=begin,
                relative=relative,
                member=position.member,
                member_byte=position.member_byte,
                begin_bytes=output.begin_bytes,
                out=output.out.persist(),
                failed=output.failed.persist(),
                failures=dict(output.failures),
            )
        )
        self._discard_published_drafts(open_shard.task)

    def end(self) -> None:
        """Finish the shards without further records, after the last batch."""
        self._finish_ended()
        self._publisher.flush()

    def close(self) -> None:
        """Release all drafts; committed work stays. Further calls do nothing."""
        for output in self._open.values():
            output.close()
        if self._previous is not None:
            self._previous[1].close()
            self._previous = None
        self._publisher.close()


def suppresses_output(settings: RunSettings, *, failed: bool) -> bool:
    """Return True if an object gets no output because of a failure in it."""
    return failed and settings.failures.on_error == "object"


def _index_of(span: ScoredSpan) -> int:
    return span.index


def _make_empty_outputs(metadata: ModelMetadata) -> Mapping[str, Array]:
    """Return the model's outputs for no rows, for outputs of known shape."""
    return {
        spec.name: np.empty((0, *spec.shape[1:]), dtype_of(spec.datatype))
        for spec in metadata.outputs
        if spec.shape is not None and -1 not in spec.shape[1:]
    }


def _check_counts(uri: str, counts: Counts) -> None:
    if counts.records_in != counts.rows_out + counts.rows_failed:
        raise CountMismatchError(
            uri, records_in=counts.records_in, out=counts.rows_out, failed=counts.rows_failed
        )
