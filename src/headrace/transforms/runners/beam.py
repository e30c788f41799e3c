"""Tasks as pipelines of Apache Beam, on any of its runners. Nothing of Beam is imported in this process.

A runner spreads the tasks, and may do one twice; what is done is looked up in the ledger, here and by who is to do it. When a
pipeline ends, by itself or because a worker of it died, whatever the ledger lacks goes into another one.
"""

import importlib.util
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import wait
from secrets import token_hex
from typing import Final, Self

from headrace.core.errors import MissingExtraError, ModelLoadError, RunnerError
from headrace.core.predictor import Predictor, PredictorStatistics
from headrace.core.tensor import ModelMetadata
from headrace.pipeline.ledger import Counts
from headrace.transforms.ledger import TransformLedger
from headrace.transforms.locality import Locality
from headrace.transforms.observation import Observation
from headrace.transforms.plan import Task
from headrace.transforms.records import Checkpoint, Spot
from headrace.transforms.runners.beam_process import PipelineOrder, PipelineProcess
from headrace.transforms.runners.deaths import DEATHS_MAX, Deaths
from headrace.transforms.runners.dispatch import assigned_tasks, assignment_of
from headrace.transforms.runners.engines import BeamWorkers
from headrace.transforms.runners.mailbox import Letter, Mailbox
from headrace.transforms.runners.messages import Assignment, add_up, counts_of, error_of, statistics_of
from headrace.transforms.runners.worker import Opener
from headrace.transforms.work import Work

_log = logging.getLogger("headrace.transform")

WORKERS_GUESSED: Final = 64
"""How many there are, where only the runner knows."""


class BeamRunner:
    """Workers of a Beam runner; as a context manager it knows the model, and `run` begins and ends pipelines.

    Args:
        opener: Makes a worker; is sent to where workers are, so it holds no secrets.
        workers: Which runner, and what it is told.
        predictor: The run's own, not started: it is started once, to know the model.
        model: The model's name, for errors.
        environ: Of workers on this machine, beside what this process has.
        locality: Where the workers are.
        prepare: Puts what workers need beside the ledger, once there is one.

    Raises MissingExtraError without Beam.
    """

    def __init__(
        self,
        opener: Opener,
        workers: BeamWorkers,
        *,
        predictor: Predictor,
        model: str,
        environ: Mapping[str, str] | None = None,
        locality: Locality | None = None,
        prepare: Callable[[TransformLedger], None],
    ) -> None:
        if importlib.util.find_spec("apache_beam") is None:
            raise MissingExtraError("beam", "a transform on Apache Beam")
        self._opener = opener
        self._workers = workers
        self._predictor = predictor
        self._model = model
        self._environ = environ
        self._locality = locality or Locality()
        self._prepare = prepare
        self._deaths = Deaths(model)
        self._metadata: ModelMetadata | None = None
        self._letters: dict[str, Letter] = {}
        """The latest of each worker, of all pipelines so far."""
        self._pipelines: list[str] = []
        """The names of those of this runner."""
        self._finished = set[int]()
        """Tasks of the run under way that are known to be done."""
        self._before = Counts()
        self._unloaded = 0
        """Workers that died one after the other, and had begun nothing."""
        self._draining = False

    def __enter__(self) -> Self:
        """Load the model, to know what it takes and gives, and let go of it. Raises what loading raises."""
        self._predictor.start()
        try:
            self._metadata = self._predictor.metadata
        finally:
            self._predictor.stop(drain=False)
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing goes on beyond `run`."""

    @property
    def metadata(self) -> ModelMetadata:
        """See `Runner.metadata`."""
        assert self._metadata is not None, "entered before"
        return self._metadata

    def run(
        self,
        work: Work,
        tasks: Sequence[Task],
        *,
        begins: Mapping[tuple[int, int], Spot],
        checkpoints: Mapping[int, Checkpoint],
    ) -> bool:
        """See `Runner.run`. Checkpoints are read by the workers themselves, from the ledger.

        A task that kills workers of the DirectRunner is left out; once all others are done, it raises InstanceLostError.
        Raises RunnerError when a runner fails, or ends without having done anything of what is left.
        """
        del checkpoints
        mailbox = Mailbox(work.ledger)
        mailbox.clear()
        self._prepare(work.ledger)
        self._before, self._finished = self._counts_before(work), set[int]()
        ours = [task.number for task in self._locality.in_turn(tasks)]
        left = ours
        try:
            while left and not self._draining:
                left = self._pipeline(work, left, begins, mailbox)
        finally:
            self._tell_observed(work)
        if not self._draining:
            self._deaths.check()
        return len(ours) == len(tasks) and self._finished.issuperset(ours)

    def _counts_before(self, work: Work) -> Counts:
        """What the run had come to without what this runner's workers tell."""
        counts = counts_of(work.progress)
        told = [letter.tally for letter in self._letters.values()]
        return Counts(
            counts.records_in - sum(t.records for t in told),
            counts.rows_out - sum(t.rows_out for t in told),
            counts.rows_failed - sum(t.rows_failed for t in told),
            counts.objects_broken - sum(t.objects_broken for t in told),
        )

    # One pipeline

    def _pipeline(
        self, work: Work, left: Sequence[int], begins: Mapping[tuple[int, int], Spot], mailbox: Mailbox
    ) -> list[int]:
        """Do tasks by one pipeline; those that are left then."""
        workers, pipeline = self._workers, token_hex(6)
        order = PipelineOrder(
            opener=self._opener,
            pipeline=pipeline,
            region=self._locality.region,
            assignments=[a.to_json() for a in self._assignments(work, left, begins)],
            options=workers.all_options,
            direct=workers.direct,
        )
        self._pipelines.append(pipeline)
        with PipelineProcess(order, self._environ) as process:
            died = self._wait(process, work, mailbox)
            self._look(work, mailbox)
            if died is not None:
                self._blame(work, died, pipeline)
        self._look_up(work, left)
        undone = [n for n in left if n not in self._finished and not self._deaths.left_out(n)]
        if undone == list(left) and died is None and not self._draining:
            raise RunnerError(
                f"Beam's {workers.runner or 'DirectRunner'} says that its pipeline is done, and the ledger in "
                f"{work.ledger.destination} lacks {len(undone)} tasks, none of which was begun there. What is finished stays: "
                "choose another runner, then --resume"
            )
        return undone

    def _wait(self, process: PipelineProcess, work: Work, mailbox: Mailbox) -> str | None:
        """Look at what workers tell until the pipeline has ended; how a worker died, if that is why."""
        told_to_drain = False
        try:
            while not wait([process.connection], self._workers.poll_s):
                self._look(work, mailbox)
                if self._draining and not told_to_drain:
                    mailbox.ask_to_drain()
                    told_to_drain = True
        except BaseException:
            process.cancel()
            raise
        message = process.receive()
        if "died" in message and self._workers.direct:
            return str(message["died"])
        if message.get("ended") != "DONE":
            self._look(work, mailbox)
            why = message.get("failed") or message.get("died") or f"it ended {message.get('ended')}"
            raise RunnerError(
                f"Beam's {self._workers.runner or 'DirectRunner'} failed: {_last_line(why)}. What is finished stays, and "
                f"--resume goes on. The last that it said:\n{process.last_words()}"
            )
        return None

    def _assignments(
        self, work: Work, left: Sequence[int], begins: Mapping[tuple[int, int], Spot]
    ) -> list[Assignment]:
        count = self._workers.direct_workers if self._workers.direct else WORKERS_GUESSED
        size = assigned_tasks(len(left), count)
        suspects = [n for n in left if self._deaths.suspect(n)]
        others = [n for n in left if not self._deaths.suspect(n)]
        groups = [[n] for n in suspects]
        groups += [others[at : at + size] for at in range(0, len(others), size)]
        return [assignment_of(work, group, begins, alone=group[0] in suspects) for group in groups]

    # What workers tell

    def _look(self, work: Work, mailbox: Mailbox) -> None:
        """Read letters; the run's progress is up to date then. Raises what a worker tells that broke its tasks."""
        for letter in mailbox.read():
            if letter.pipeline not in self._pipelines:
                continue  # of a run before this one, which nobody could end
            self._letters[letter.worker] = letter
            self._took(work, letter.done)
            if letter.error is not None:
                raise error_of(letter.error)
        add_up(work.progress, [letter.tally for letter in self._letters.values()], self._before)
        work.on_batch(None)

    def _took(self, work: Work, numbers: Sequence[int]) -> None:
        for number in numbers:
            record = None if number in self._finished else work.ledger.task(number)
            if record is not None:
                self._finished.add(number)
                work.on_task(record)

    def _look_up(self, work: Work, left: Sequence[int]) -> None:
        """Tasks that were done by workers that could not say so. Of tasks that are done again the ledger does not tell."""
        if not work.replaces:
            self._took(work, left)

    def _blame(self, work: Work, how: str, pipeline: str) -> None:
        """A worker process of this machine died: what it was doing is suspect. The others die only now, with the pipeline."""
        here = socket.gethostname()
        letters = [x for x in self._letters.values() if x.pipeline == pipeline and x.host == here]
        guilty = [x for x in letters if x.doing and not _alive(x.pid)]
        for letter in guilty:
            undone = [n for n in letter.doing if n not in self._finished]
            _log.warning("worker died", extra={"how": how, "tasks": undone})
            if undone:
                self._deaths.kills(undone[0], work, f"({how})")
        self._unloaded = 0 if guilty or letters else self._unloaded + 1
        if self._unloaded >= DEATHS_MAX:
            raise ModelLoadError(self._model, f"its workers end while they load it ({how})")

    def _tell_observed(self, work: Work) -> None:
        """What workers have seen goes to the page; once for each of them."""
        if work.observation is None:
            return
        for letter in self._letters.values():
            if letter.observed is not None:
                work.observation.add_all(Observation.from_json(letter.observed))

    def drain(self) -> None:
        """See `Runner.drain`. Workers hear of it within seconds."""
        self._draining = True

    # Figures

    def statistics(self) -> PredictorStatistics:
        """See `Runner.statistics`."""
        return statistics_of([letter.tally for letter in list(self._letters.values())])

    def reading(self) -> Sequence[str]:
        """See `Runner.reading`."""
        return [letter.tally.reading for letter in list(self._letters.values()) if letter.doing]

    def cpu_s(self) -> float:
        """See `Runner.cpu_s`."""
        return sum(letter.tally.cpu_s for letter in list(self._letters.values()))

    def peak_memory_mb(self) -> float:
        """See `Runner.peak_memory_mb`."""
        return sum(letter.tally.peak_memory_mb for letter in list(self._letters.values()))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else text
