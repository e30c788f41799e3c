"""The outputs that a process is writing: of each shard, or of the task in progress."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.runs.ledger import Ledger
from headrace.runs.output import EncoderFactory, RecordOutput, SpooledOutput
from headrace.runs.plan import OpenShard
from headrace.runs.records import Counts, sum_counts
from headrace.runs.settings import RunSettings
from headrace.storage.draft import Draft
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
        self._open: dict[int, OpenOutput] = {}
        """The outputs of the shards that are being written, by open shard."""
        self._part_in_progress: tuple[int, RecordOutput[SpooledOutput]] | None = None
        """The task in progress and its part, in a run that writes parts."""
        self._appends = self._per_object and isinstance(ledger.store, LocalStore)
        """True if drafts are files, to which the next range of an object can be appended."""
        self._previous: tuple[int, Draft] | None = None
        """The last finished shard and its draft."""
        self._objects_with_begin = set[int]()
        """Objects whose header a range of this process has written."""

    def get(self, index: int) -> OpenOutput | None:
        """Return the output of an open shard if it is being written."""
        return self._open.get(index)

    @property
    def unfinished(self) -> list[int]:
        """The open shards that are being written."""
        return list(self._open)

    def remove(self, index: int) -> None:
        """Forget a finished shard; the part of its task stays."""
        del self._open[index]

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
        outputs = [opened.output for opened in self._open.values()]
        if self._part_in_progress is not None:
            outputs.append(self._part_in_progress[1])
        for output in outputs:
            self.close_output(output)
        if self._previous is not None:
            self._previous[1].close()
            self._previous = None

    def open(self, index: int) -> OpenOutput:
        """Return the output of an open shard."""
        if index not in self._open:
            open_shard = self._open_shards[index]
            output = self._object_output(index, open_shard) if self._per_object else self._part(open_shard)
            resumed = open_shard.resume
            already, failures = (
                (resumed.counts, Counter(resumed.failures)) if resumed else (Counts(), Counter[str]())
            )
            out_bytes = 0
            if not self._per_object:
                # The output of a checkpoint inside the shard has the shard's first bytes, too.
                out_bytes = sum(s.out_bytes for s in resumed.done) if resumed else output.out.nbytes
            self._open[index] = OpenOutput(
                output,
                output.counts.minus(already),
                output.entries,
                output.failures - failures,
                out_bytes,
            )
        return self._open[index]

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
