"""Scored batches to outputs: each record to its own object's, whatever company it had in the batch.

Arrives: `ScoredBatch`es in source order, over many objects. Leaves: ``KEY.out`` and ``KEY.out.failed`` of every object that
is whole here, kept drafts of every range, and the ledger's record of every task.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from headrace.core.clock import Clock
from headrace.core.errors import CountMismatchError, TooManyFailuresError
from headrace.core.tensor import Array, ModelMetadata, dtype_of
from headrace.pipeline.items import ScoredBatch, ScoredSpan
from headrace.pipeline.ledger import Counts
from headrace.storage.draft import Draft, Kept, discard
from headrace.storage.local import LocalStore
from headrace.storage.publisher import Publisher
from headrace.transforms.ledger import DRAFTS, TransformLedger
from headrace.transforms.output import EncoderFactory, ShardOutput
from headrace.transforms.plan import TransformPlan
from headrace.transforms.records import Checkpoint, ShardRecord, TaskRecord
from headrace.transforms.settings import TABLES, TransformSettings
from headrace.transforms.source import ShardEnd, Slot, TaskSource
from headrace.transforms.spool import Spool


class TaskSink:
    """One thread writes. Call `write` for every batch, `end` after the last, `close` whatever happens.

    Args:
        ledger: Of the destination.
        plan: What the slots are of.
        slots: The source's.
        source: Tells when a slot was read to its end.
        make_encoder: See `EncoderFactory`.
        metadata: The model's.
        settings: The transform's.
        attempt: Names this process's drafts; nobody else has it.
        clock: Tells when a checkpoint is due.
        on_task: Told of every task that is done and committed, here or by another process.
        replaces: Whether the tasks were done before, and are done again since that was wrong.
    """

    def __init__(
        self,
        ledger: TransformLedger,
        plan: TransformPlan,
        slots: Sequence[Slot],
        source: TaskSource,
        *,
        make_encoder: EncoderFactory,
        metadata: ModelMetadata,
        settings: TransformSettings,
        attempt: str,
        clock: Clock,
        on_task: Callable[[TaskRecord], None],
        replaces: bool = False,
        region: str | None = None,
        check: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self._plan = plan
        self._slots = slots
        self._source = source
        self._make_encoder = make_encoder
        self._nothing = _no_rows(metadata) if settings.output.accept in TABLES else None
        self._settings = settings
        self._attempt = attempt
        self._clock = clock
        self._on_task = on_task
        self._replaces = replaces
        self._region = region
        self._check = check
        self._publisher = Publisher(ledger.store, ledger.destination, drafts=ledger.uri(DRAFTS))
        self._open: dict[int, ShardOutput] = {}
        self._appends = isinstance(ledger.store, LocalStore)
        """Whether drafts are files, in which ranges of one object can stand behind each other."""
        self._before: tuple[int, Draft] | None = None
        """The slot that was finished last, and its draft."""
        self._begun = set[int]()
        """Objects of which a range was done here that has what stands before the first record."""
        self._done: defaultdict[int, list[ShardRecord]] = defaultdict(list)
        for slot in slots:
            self._done[slot.task] += slot.done
        self._left: defaultdict[int, list[Kept]] = defaultdict(list)
        """By task, what was kept of outputs that are published: the last checkpoint still speaks of it."""
        self._began_s = self._checkpointed_s = clock.now()

    def write(self, batch: ScoredBatch) -> None:
        """Take a batch; finishes what ends with it, and keeps the rest when a checkpoint is due."""
        row = 0
        for index, group in groupby(batch.spans, key=_index_of):
            spans = list(group)
            rows = sum(len(span.piece) for span in spans)
            outputs = {name: data[row : row + rows] for name, data in batch.outputs.items()} if rows else {}
            row += rows
            output = self._output(index)
            output.add(spans, outputs)
            if output.has_failures:
                self._failed(self._slots[index])
        self._finish_ended()
        if self._clock.now() - self._checkpointed_s >= self._settings.tasks.checkpoint_s:
            self.checkpoint(batch)

    def _failed(self, slot: Slot) -> None:
        match self._settings.failures.on_error:
            case "job":
                raise TooManyFailuresError(
                    f"{self._plan.objects[slot.shard.index].info.uri}: a record failed, and on_error is job"
                )
            case "object":
                self._source.skip(slot.shard.index)
            case _:
                pass

    def _output(self, index: int) -> ShardOutput:
        found = self._open.get(index)
        if found is not None:
            return found
        slot = self._slots[index]
        name = f"task-{slot.task:05d}-{self._attempt}-{slot.shard.index}-{slot.shard.number}"
        store, uri, resume = self._ledger.store, self._ledger.draft_uri(name), slot.resume
        made = self._open[index] = ShardOutput(
            make_encoder=self._make_encoder,
            out=Spool(
                store, f"{uri}.out", kept=resume.out if resume else None, draft=self._draft_before(index)
            ),
            failed=Spool(store, f"{uri}.failed", kept=resume.failed if resume else None),
            begins=slot.shard.index not in self._begun,
            begin_bytes=resume.begin_bytes if resume else 0,
            counts=resume.counts if resume else None,
            failures=resume.failures if resume else None,
        )
        return made

    def _draft_before(self, index: int) -> Draft | None:
        """The draft of the range before, where that was done here: so that a file need not be put together later."""
        before, self._before = self._before, None
        if before is None:
            return None
        number, draft = before
        shard, last = self._slots[index].shard, self._slots[number].shard
        if number == index - 1 and (shard.index, shard.number) == (last.index, last.number + 1):
            return draft
        draft.close()
        return None

    def _finish_ended(self) -> None:
        """Finish every slot of which all that was read has come."""
        ended = self._source.ended
        while ended:
            end = ended[0]
            output = self._output(end.slot)
            if output.entries != end.entries:
                return
            ended.popleft()
            self._finish(end, output)

    def _finish(self, end: ShardEnd, output: ShardOutput) -> None:
        slot = self._slots[end.slot]
        self._check()
        del self._open[end.slot]
        output.end(self._nothing)
        counts, out_bytes = output.counts, output.out.nbytes
        _check_law(self._plan.objects[slot.shard.index].info.uri, counts)
        record = ShardRecord(
            index=slot.shard.index,
            number=slot.shard.number,
            counts=counts,
            out_bytes=out_bytes,
            begin=end.begin,
            end=end.end,
            relative=end.relative,
            begin_bytes=output.begin_bytes,
            failures=dict(output.failures),
        )
        if slot.shard.whole:
            self._publish(slot, output)
        else:
            record = replace(record, out=output.out.keep(), failed=output.failed.keep())
            if output.begin_bytes:
                self._begun.add(slot.shard.index)
            draft = output.out.release() if self._appends else None
            self._before = (end.slot, draft) if draft is not None else None
        output.close()
        self._done[slot.task].append(record)
        if slot.ends_task:
            self._commit(slot.task)

    def _publish(self, slot: Slot, output: ShardOutput) -> None:
        planned, destination = self._plan.objects[slot.shard.index], self._ledger.destination
        if withholds(self._settings, failed=output.has_failures):
            self._ledger.store.delete(destination + planned.output)
        else:
            self._publish_spool(slot, output.out, destination + planned.output)
        if output.failed.nbytes:
            self._publish_spool(slot, output.failed, destination + planned.failed)

    def _publish_spool(self, slot: Slot, spool: Spool, uri: str) -> None:
        kept = spool.publish(uri, self._publisher)
        if kept is not None:
            self._left[slot.task].append(kept)

    def _discard_left(self, task: int) -> None:
        """The task's record, or another checkpoint, is there."""
        for kept in self._left.pop(task, ()):
            discard(self._ledger.store, kept)

    def _commit(self, task: int) -> None:
        self._check()
        self._publisher.settle()
        elapsed_s = round(self._clock.now() - self._began_s, 6)
        record = TaskRecord(task, self._attempt, tuple(self._done.pop(task)), elapsed_s, self._region)
        self._began_s = self._checkpointed_s = self._clock.now()
        if self._replaces:
            self._ledger.replace_task(record)
        elif not self._ledger.commit_task(record):
            # Somebody else had done it: what they wrote stands, and is the same but for their drafts' names.
            record = self._ledger.task(task) or record
        self._discard_left(task)
        self._on_task(record)

    def checkpoint(self, batch: ScoredBatch) -> None:
        """Keep what the task under way has come to, up to the end of `batch`."""
        self._checkpointed_s = self._clock.now()
        self._check()
        slot = self._slots[batch.end.index] if batch.end.index < len(self._slots) else None
        if slot is None:
            return
        done = self._done[slot.task]
        output, position = self._open.get(batch.end.index), batch.end.position
        resumable = self._settings.output.accept not in TABLES
        self._publisher.settle()
        if output is None or position is None or not resumable:
            if done:
                self._ledger.checkpoint(Checkpoint(slot.task, tuple(done)))
                self._discard_left(slot.task)
            return
        begin, relative = self._source.begun.get(batch.end.index, (None, False))
        entries = output.entries + (slot.resume.entries if slot.resume else 0)
        self._ledger.checkpoint(
            Checkpoint(
                task=slot.task,
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
                out=output.out.keep(),
                failed=output.failed.keep(),
                failures=dict(output.failures),
            )
        )
        self._discard_left(slot.task)

    def end(self) -> None:
        """After the last batch: finish what has no records of its own to come."""
        self._finish_ended()
        self._publisher.settle()

    def close(self) -> None:
        """Let go of everything; what is committed stays. Closing twice does nothing."""
        for output in self._open.values():
            output.close()
        if self._before is not None:
            self._before[1].close()
            self._before = None
        self._publisher.close()


def withholds(settings: TransformSettings, *, failed: bool) -> bool:
    """Whether an object gets no output, since something of it failed."""
    return failed and settings.failures.on_error == "object"


def _index_of(span: ScoredSpan) -> int:
    return span.index


def _no_rows(metadata: ModelMetadata) -> Mapping[str, Array]:
    """The model's outputs for no rows, as far as it says what they are."""
    return {
        spec.name: np.empty((0, *spec.shape[1:]), dtype_of(spec.datatype))
        for spec in metadata.outputs
        if spec.shape is not None and -1 not in spec.shape[1:]
    }


def _check_law(uri: str, counts: Counts) -> None:
    if counts.records_in != counts.rows_out + counts.rows_failed:
        raise CountMismatchError(
            uri, records_in=counts.records_in, out=counts.rows_out, failed=counts.rows_failed
        )
