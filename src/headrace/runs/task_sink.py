"""Write scored batches to the outputs of tasks: one for each object, or one part for each task.

Input: `ScoredBatch`es in source order, across objects. Output: ``KEY.out`` (``KEY.out.partial`` of a
broken object) and ``KEY.out.failed`` of every object that is read as a whole, or the part of every task;
persisted drafts of every range; and the ledger's record of every task.
"""

import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from headrace.core.errors import LedgerError
from headrace.formats.contract import Encoder
from headrace.runs.items import ScoredBatch
from headrace.runs.ledger import Ledger
from headrace.runs.output import (
    EmptyEncoderFactory,
    EncoderFactory,
    RecordOutput,
    SpooledOutput,
    suppresses_output,
)
from headrace.runs.partition_files import publish_partitions
from headrace.runs.parts import part_names
from headrace.runs.plan import OpenShard, Shard, ShardEnd
from headrace.runs.records import Counts, ShardRecord, TaskCheckpoint, TaskRecord, sum_counts
from headrace.runs.settings import RunSettings
from headrace.runs.source import ShardSource
from headrace.runs.work import RunWork
from headrace.storage.draft import Draft, PersistedDraft, discard
from headrace.storage.local import LocalStore


@dataclass(frozen=True, slots=True)
class OpenOutput:
    """The output that a shard is written to, and its contents before the shard."""

    output: RecordOutput[SpooledOutput]
    before: Counts
    entries_before: int
    failures_before: Counter[str]
    out_bytes_before: int

    @property
    def counts(self) -> Counts:
        """The counts of the shard."""
        return self.output.counts.minus(self.before)

    @property
    def entries(self) -> int:
        """The number of the shard's records and failures that this process wrote."""
        return self.output.entries - self.entries_before

    @property
    def failures(self) -> dict[str, int]:
        """The failed records of the shard by reason."""
        return dict(self.output.failures - self.failures_before)


class OpenOutputs:
    """The outputs that a process is writing: of each shard, or in a run of parts of the task in progress.

    Args:
        ledger: The ledger of the destination.
        open_shards: The shards of the source.
        make_encoder: See `EncoderFactory`.
        settings: The settings of the run.
        attempt: A unique part of the names of this process's drafts.
    """

    def __init__(
        self,
        ledger: Ledger,
        open_shards: Sequence[OpenShard],
        *,
        make_encoder: EncoderFactory,
        settings: RunSettings,
        attempt: str,
    ) -> None:
        self._ledger = ledger
        self._open_shards = open_shards
        self._make_encoder = make_encoder
        self._settings = settings
        self._per_object = settings.per_object
        self._attempt = attempt
        self.unfinished: dict[int, OpenOutput] = {}
        """The outputs of the shards that are being written, by open shard."""
        self._part_in_progress: tuple[int, RecordOutput[SpooledOutput]] | None = None
        """The task in progress and its part, in a run that writes parts."""
        self._appends = self._per_object and isinstance(ledger.store, LocalStore)
        """True if drafts are files, to which the next range of an object can be appended."""
        self._previous: tuple[int, Draft] | None = None
        """The last finished shard and its draft."""
        self._objects_with_begin = set[int]()
        """Objects whose header a range of this process has written."""

    def keep_range(self, index: int, output: RecordOutput[SpooledOutput]) -> None:
        """Keep the end of a finished range for the next range of its object."""
        if output.begin_bytes:
            self._objects_with_begin.add(self._open_shards[index].shard.index)
        draft = output.out.release() if self._appends else None
        self._previous = (index, draft) if draft is not None else None

    def close_output(self, output: RecordOutput[SpooledOutput]) -> None:
        """Release the drafts of a finished output."""
        output.out.close()
        output.failed.close()
        self._part_in_progress = None

    def close(self) -> None:
        """Release all drafts. Further calls do nothing."""
        outputs = [opened.output for opened in self.unfinished.values()]
        if self._part_in_progress is not None:
            outputs.append(self._part_in_progress[1])
        for output in outputs:
            self.close_output(output)
        if self._previous is not None:
            self._previous[1].close()
            self._previous = None

    def open(self, index: int) -> OpenOutput:
        """Return the output of an open shard."""
        if index not in self.unfinished:
            open_shard = self._open_shards[index]
            output = self._object_output(index, open_shard) if self._per_object else self._part(open_shard)
            resumed = open_shard.resume
            already, failures = (
                (resumed.counts, Counter(resumed.failures)) if resumed else (Counts(), Counter[str]())
            )
            out_bytes = 0
            if not self._per_object:
                # The output of a checkpoint inside the shard has the shard's first bytes, too.
                out_bytes = sum(s.out_bytes for s in resumed.done) if resumed else output.out_bytes
            self.unfinished[index] = OpenOutput(
                output,
                output.counts.minus(already),
                output.entries,
                output.failures - failures,
                out_bytes,
            )
        return self.unfinished[index]

    def _object_output(self, index: int, open_shard: OpenShard) -> RecordOutput[SpooledOutput]:
        shard, resume = open_shard.shard, open_shard.resume
        uri = self._draft_uri(open_shard.task, f"{shard.index}-{shard.number}")
        store = self._ledger.store
        return RecordOutput(
            make_encoder=self._make_encoder,
            out=SpooledOutput(
                store,
                f"{uri}.out",
                persisted=resume.out if resume else None,
                draft=self._previous_draft(index),
            ),
            failed=SpooledOutput(store, f"{uri}.failed", persisted=resume.failed if resume else None),
            writes_begin=shard.index not in self._objects_with_begin,
            begin_bytes=resume.begin_bytes if resume else 0,
            counts=resume.counts if resume else None,
            failures=resume.failures if resume else None,
            policy=self._settings.failures,
        )

    def _part(self, open_shard: OpenShard) -> RecordOutput[SpooledOutput]:
        """Return the part of the shard's task, with the output of the task's checkpoint."""
        task, checkpoint = open_shard.task, open_shard.checkpoint
        if (begun := self.begun_part(task)) is not None:
            return begun
        uri, store = self._draft_uri(task, "part"), self._ledger.store
        done = checkpoint.done if checkpoint else ()
        failures = sum(
            (Counter(s.failures) for s in done), Counter(checkpoint.failures if checkpoint else {})
        )
        output = RecordOutput(
            make_encoder=self._make_encoder,
            out=SpooledOutput(store, f"{uri}.out", persisted=checkpoint.out if checkpoint else None),
            failed=SpooledOutput(store, f"{uri}.failed", persisted=checkpoint.failed if checkpoint else None),
            begin_bytes=checkpoint.begin_bytes if checkpoint else 0,
            counts=sum_counts((*(s.counts for s in done), checkpoint.counts if checkpoint else Counts())),
            failures=failures,
            policy=self._settings.failures,
        )
        self._part_in_progress = task, output
        return output

    def begun_part(self, task: int) -> RecordOutput[SpooledOutput] | None:
        """Return the part in progress if it is that of the task."""
        begun = self._part_in_progress
        return begun[1] if begun is not None and begun[0] == task else None

    def _draft_uri(self, task: int, name: str) -> str:
        return self._ledger.draft_uri(f"task-{task:05d}-{self._attempt}-{name}")

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


class TaskSink:
    """The writer of a task run's output.

    One thread calls `write` for every batch, then `end` and `close`.

    Args:
        work: The properties of the run.
        open_shards: The shards of the source.
        source: The source, for the ends of shards.
        make_encoder: See `EncoderFactory`.
        make_empty: A function that makes the encoder of an object's output without predictions.
    """

    def __init__(
        self,
        work: RunWork,
        open_shards: Sequence[OpenShard],
        source: ShardSource,
        *,
        make_encoder: EncoderFactory,
        make_empty: EmptyEncoderFactory,
    ) -> None:
        self._work = work
        self._ledger = ledger = work.ledger
        self._open_shards = open_shards
        self._source = source
        self._settings = settings = work.settings
        self._per_object = settings.per_object
        self._is_written_whole = settings.output.is_written_whole
        self._make_empty = make_empty
        self._attempt = attempt = uuid.uuid4().hex[:12]
        """A unique part of the names of this process's drafts."""
        self._publisher = ledger.draft_publisher()
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
        for index, group in groupby(batch.spans, key=lambda span: span.index):
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
        del self._outputs.unfinished[end.open_shard]  # the part of its task stays
        ends_output = self._per_object or open_shard.ends_task
        if ends_output:
            output.end(self._empty_encoder(open_shard, output))
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

    def _empty_encoder(
        self, open_shard: OpenShard, output: RecordOutput[SpooledOutput]
    ) -> Callable[[], Encoder | None] | None:
        """Return the maker of the encoder of an output without predictions, or None if it needs none.

        A table needs one. Text needs one for its header, if an object or the first part has no records.
        """
        has_records = output.counts != Counts() or not open_shard.shard.is_whole
        if (has_records and not self._is_written_whole) or not (self._per_object or open_shard.task == 0):
            return None
        index = open_shard.shard.index if self._per_object else 0
        return lambda: self._make_empty(self._work.plan.objects[index].info)

    def _record(self, end: ShardEnd, opened: OpenOutput, shard: Shard) -> ShardRecord:
        opened.counts.check(self._work.plan.objects[shard.index].info.uri)
        return ShardRecord(
            index=shard.index,
            number=shard.number,
            counts=opened.counts,
            out_bytes=opened.output.out_bytes - opened.out_bytes_before,
            begin=end.begin,
            end=end.end,
            relative=end.relative,
            begin_bytes=opened.output.begin_bytes,
            failures=opened.failures,
        )

    def _publish(self, open_shard: OpenShard, output: RecordOutput[SpooledOutput]) -> None:
        destination = self._ledger.destination
        if self._per_object:
            number = open_shard.shard.index
            planned = self._work.plan.objects[number]
            name, failed_name = planned.output_name(output.counts), planned.failed
        else:
            number = open_shard.task
            name, failed_name = part_names(number, self._settings.output.format)
        is_suppressed = suppresses_output(self._settings, failed=output.counts.has_failures)
        if self._settings.output.partition_by:
            sizes = dict[str, int]() if is_suppressed else output.partitions
            publish_partitions(
                self._ledger, self._publisher, number, name=name, sizes=sizes, read=output.out.chunks
            )
            self._discard_later(open_shard, output.out.persisted_draft())
        elif is_suppressed:
            self._ledger.store.delete(destination + name)
        elif self._per_object or output.out.nbytes:
            self._publish_output(open_shard, output.out, destination + name)
        if output.failed.nbytes:
            self._publish_output(open_shard, output.failed, destination + failed_name)

    def _publish_output(self, open_shard: OpenShard, spooled: SpooledOutput, uri: str) -> None:
        self._discard_later(open_shard, spooled.publish(uri, self._publisher))

    def _discard_later(self, open_shard: OpenShard, draft: PersistedDraft | None) -> None:
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
        opened = None if position is None else self._outputs.unfinished.get(index)
        output = opened.output if opened is not None else self._outputs.begun_part(task)
        if output is None or self._is_written_whole:
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
