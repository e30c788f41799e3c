"""Write scored batches to the outputs of tasks: one for each object, or one part for each task.

Input: `ScoredBatch`es in source order, across objects. Output: ``KEY.out`` and ``KEY.out.failed``
of every whole object, or the part of every task; persisted drafts of every range; and the ledger's
record of every task.
"""

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from headrace.core.errors import LedgerError
from headrace.core.tensor import Array, ModelMetadata, empty_array
from headrace.runs.items import ScoredBatch, ScoredSpan
from headrace.runs.ledger import DRAFTS
from headrace.runs.output import EncoderFactory, RecordOutput, SpooledOutput, suppresses_output
from headrace.runs.parts import part_names
from headrace.runs.plan import OpenShard, Shard, ShardEnd
from headrace.runs.records import ShardRecord, TaskCheckpoint, TaskRecord
from headrace.runs.settings import TABLES
from headrace.runs.source import ShardSource
from headrace.runs.task_outputs import OpenOutput, OpenOutputs
from headrace.runs.work import RunWork
from headrace.storage.draft import DraftPublisher, PersistedDraft, discard


class TaskSink:
    """The writer of a task run's output.

    One thread calls `write` for every batch, then `end` and `close`.

    Args:
        work: The properties of the run.
        open_shards: The shards of the source.
        source: The source, for the ends of shards.
        make_encoder: See `EncoderFactory`.
        metadata: The model's metadata.
    """

    def __init__(
        self,
        work: RunWork,
        open_shards: Sequence[OpenShard],
        source: ShardSource,
        *,
        make_encoder: EncoderFactory,
        metadata: ModelMetadata,
    ) -> None:
        self._work = work
        self._ledger = ledger = work.ledger
        self._open_shards = open_shards
        self._source = source
        self._settings = settings = work.settings
        self._per_object = settings.per_object
        self._is_table = settings.output.format in TABLES
        writes_empty_tables = self._is_table and self._per_object
        self._empty_outputs = _make_empty_outputs(metadata) if writes_empty_tables else None
        self._attempt = attempt = uuid.uuid4().hex[:12]
        """A unique part of the names of this process's drafts."""
        self._publisher = DraftPublisher(ledger.store, ledger.destination, drafts=ledger.uri(DRAFTS))
        self._outputs = OpenOutputs(
            ledger, open_shards, make_encoder=make_encoder, settings=settings, attempt=attempt
        )
        self._done: defaultdict[int, list[ShardRecord]] = defaultdict(list)
        for open_shard in open_shards:
            self._done[open_shard.task] += open_shard.done
        self._published_drafts: defaultdict[int, list[PersistedDraft]] = defaultdict(list)
        """Persisted drafts of published outputs by task; the last checkpoint still refers to them.
        """
        self._began_s = self._checkpointed_s = work.clock.now()

    def write(self, batch: ScoredBatch) -> None:
        """Write a batch, finish the shards that end with it, and write a checkpoint if one is due.

        Raises TooManyFailuresError for a failed record if the settings allow none.
        """
        row = 0
        for index, group in groupby(batch.spans, key=_index_of):
            spans = list(group)
            rows = sum(len(span.selection) for span in spans)
            outputs = {name: data[row : row + rows] for name, data in batch.outputs.items()} if rows else {}
            row += rows
            # Earlier shards, which may share the output or have had no records.
            self._finish_ended()
            opened = self._outputs.open(index)
            opened.output.add(spans, outputs)
            if self._settings.failures.on_error == "object" and opened.counts.has_failures:
                self._source.skip(self._open_shards[index].shard.index)
        self._finish_ended()
        if self._work.clock.now() - self._checkpointed_s >= self._settings.output.checkpoint_s:
            self.checkpoint(batch)

    def _finish_ended(self) -> None:
        """Finish every shard whose records are all written."""
        ended = self._source.shard_ends
        while ended:
            end = ended[0]
            opened = self._outputs.open(end.open_shard)
            if opened.entries != end.entries:
                return
            ended.popleft()
            self._finish(end, opened)

    def _finish(self, end: ShardEnd, opened: OpenOutput) -> None:
        open_shard, output = self._open_shards[end.open_shard], opened.output
        self._work.check()
        self._outputs.remove(end.open_shard)
        ends_output = self._per_object or open_shard.ends_task
        if ends_output:
            output.end(self._empty_outputs)
        record = self._record(end, opened, open_shard.shard)
        if ends_output and open_shard.shard.is_whole:
            self._publish(open_shard, output)
        elif ends_output:
            record = replace(record, out=output.out.persist(), failed=output.failed.persist())
            self._outputs.keep_range(end.open_shard, output)
        if ends_output:
            self._outputs.close_output(output)
        self._done[open_shard.task].append(record)
        if open_shard.ends_task:
            self._commit(open_shard.task)

    def _record(self, end: ShardEnd, opened: OpenOutput, shard: Shard) -> ShardRecord:
        opened.counts.check(self._work.plan.objects[shard.index].info.uri)
        return ShardRecord(
            index=shard.index,
            number=shard.number,
            counts=opened.counts,
            out_bytes=opened.output.out.nbytes - opened.out_bytes_before,
            begin=end.begin,
            end=end.end,
            relative=end.relative,
            begin_bytes=opened.output.begin_bytes,
            failures=opened.failures,
        )

    def _publish(self, open_shard: OpenShard, output: RecordOutput[SpooledOutput]) -> None:
        destination = self._ledger.destination
        if self._per_object:
            planned = self._work.plan.objects[open_shard.shard.index]
            name, failed_name = planned.output, planned.failed
        else:
            name, failed_name = part_names(open_shard.task, self._settings.output.format)
        if suppresses_output(self._settings, failed=output.counts.has_failures):
            self._ledger.store.delete(destination + name)
        elif self._per_object or output.out.nbytes:
            self._publish_output(open_shard, output.out, destination + name)
        if output.failed.nbytes:
            self._publish_output(open_shard, output.failed, destination + failed_name)

    def _publish_output(self, open_shard: OpenShard, spooled: SpooledOutput, uri: str) -> None:
        draft = spooled.publish(uri, self._publisher)
        if draft is not None:
            self._published_drafts[open_shard.task].append(draft)

    def _discard_published_drafts(self, task: int) -> None:
        """Remove drafts that neither the task's record nor a checkpoint refers to any more."""
        for draft in self._published_drafts.pop(task, ()):
            discard(self._ledger.store, draft)

    def _commit(self, task: int) -> None:
        self._work.check()
        self._publisher.flush()
        elapsed_s = round(self._work.clock.now() - self._began_s, 6)
        record = TaskRecord(task, self._attempt, tuple(self._done.pop(task)), elapsed_s, self._work.region)
        self._began_s = self._checkpointed_s = self._work.clock.now()
        if self._work.replaces:
            self._ledger.replace_task(record)
        elif not self._ledger.commit_task(record):
            # Another worker committed the task first; its outputs have the same bytes.
            record = self._ledger.task(task) or record
        self._discard_published_drafts(task)
        self._work.on_task(record)

    def checkpoint(self, batch: ScoredBatch) -> None:
        """Persist the task in progress up to the end of `batch`."""
        self._checkpointed_s = self._work.clock.now()
        self._work.check()
        index, position = batch.end.index, batch.end.position
        if index >= len(self._open_shards):
            return
        open_shard = self._open_shards[index]
        task, done = open_shard.task, self._done[open_shard.task]
        self._publisher.flush()
        opened = None if position is None else self._outputs.get(index)
        output = opened.output if opened is not None else self._outputs.begun_part(task)
        if output is None or self._is_table:
            if done and self._per_object:
                self._save(TaskCheckpoint(task, tuple(done)))
            return
        checkpoint = TaskCheckpoint(
            task=task,
            done=tuple(done),
            begin_bytes=output.begin_bytes,
            out=output.out.persist(),
            failed=output.failed.persist(),
        )
        if opened is not None and position is not None:
            begin, relative = self._source.range_begins.get(index, (None, False))
            checkpoint = replace(
                checkpoint,
                is_inside=True,
                record=position.record,
                line=position.line,
                byte=position.byte,
                counts=opened.counts,
                begin=begin,
                relative=relative,
                member=position.member,
                member_byte=position.member_byte,
                failures=opened.failures,
            )
        self._save(checkpoint)

    def _save(self, checkpoint: TaskCheckpoint) -> None:
        self._ledger.checkpoint(checkpoint)
        self._discard_published_drafts(checkpoint.task)

    def end(self) -> None:
        """Finish the shards without further records, after the last batch.

        Raises LedgerError if records of a shard are missing.
        """
        self._finish_ended()
        self._publisher.flush()
        if self._outputs.unfinished or self._source.shard_ends:
            open_shard = self._open_shards[
                min((*self._outputs.unfinished, *(e.open_shard for e in self._source.shard_ends)))
            ]
            uri = self._work.plan.objects[open_shard.shard.index].info.uri
            raise LedgerError(
                f"{uri}: not all of its records were written although all were read. Do not trust this "
                "output; please report it"
            )

    def close(self) -> None:
        """Release all drafts; committed work stays. Further calls do nothing."""
        self._outputs.close()
        self._publisher.close()


def _index_of(span: ScoredSpan) -> int:
    return span.index


def _make_empty_outputs(metadata: ModelMetadata) -> Mapping[str, Array]:
    """Return the model's outputs for no rows, for outputs of known shape."""
    return {
        spec.name: empty_array(spec)
        for spec in metadata.outputs
        if spec.shape is not None and -1 not in spec.shape[1:]
    }
