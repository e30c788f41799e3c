"""Tasks as pipelines of Apache Beam, on any of its runners. Nothing of Beam is imported in this process.

A runner spreads the tasks, and may do one twice; what is done is looked up in the ledger, here and by who is to do it. When a
pipeline ends, by itself or because a worker of it died, whatever the ledger lacks goes into another one.
"""

import importlib.util
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import wait
from secrets import token_hex
from typing import Final, Self

from headrace.core.errors import MissingExtraError, ModelLoadError, RunnerError
from headrace.core.predictor import Predictor
from headrace.transforms.ledger import TransformLedger
from headrace.transforms.locality import Locality
from headrace.transforms.plan import Task
from headrace.transforms.records import Checkpoint, Spot
from headrace.transforms.runners.beam_process import PipelineOrder, PipelineProcess
from headrace.transforms.runners.deaths import DEATHS_MAX
from headrace.transforms.runners.dispatch import Hand
from headrace.transforms.runners.dispatched import DispatchedRunner
from headrace.transforms.runners.engines import BeamWorkers
from headrace.transforms.runners.mailbox import Letter, Mailbox
from headrace.transforms.runners.worker import Opener
from headrace.transforms.work import Work

WORKERS_GUESSED: Final = 64
"""How many there are, where only the runner knows."""


class BeamRunner(DispatchedRunner):
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
        super().__init__(model)
        self._opener = opener
        self._workers = workers
        self._predictor = predictor
        self._environ = environ
        self._locality = locality or Locality()
        self._prepare = prepare
        self._pipeline = ""
        """The name of the one under way."""
        self._hands: dict[str, tuple[Letter, Hand]] = {}
        """Its workers, by name, and what each told last."""
        self._unloaded = 0
        """Workers that died one after the other, and had begun nothing."""
        self._draining = False

    def __enter__(self) -> Self:
        """Load the model, to know what it takes and gives, and let go of it. Raises what loading raises."""
        self._predictor.start()
        try:
            self._dispatcher.metadata = self._predictor.metadata
        finally:
            self._predictor.stop(drain=False)
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing goes on beyond `run`."""

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
        mailbox = Mailbox(work.ledger)
        mailbox.clear()
        self._prepare(work.ledger)
        ours = self._locality.in_turn(tasks)
        self._dispatcher.begin(work, ours, begins, checkpoints)
        while self._dispatcher.left and not self._draining:
            self._do(work, mailbox)
        return self._dispatcher.complete(drained=self._draining) and len(ours) == len(tasks)

    # One pipeline

    def _do(self, work: Work, mailbox: Mailbox) -> None:
        """Have what is left done by one pipeline, as far as it comes."""
        workers, left = self._workers, self._dispatcher.left
        self._pipeline = token_hex(6)
        count = workers.direct_workers if workers.direct else WORKERS_GUESSED
        order = PipelineOrder(
            opener=self._opener,
            pipeline=self._pipeline,
            region=self._locality.region,
            assignments=[a.to_json() for a in self._dispatcher.assign_all(of=count)],
            options=workers.all_options,
            direct=workers.direct,
        )
        died: str | None = None
        with PipelineProcess(order, self._environ) as process:
            try:
                died = self._wait(process, work, mailbox)
            finally:
                guilty = self._part(died)
        self._dispatcher.recover()
        self._dispatcher.told()
        self._check(work, died, nothing=self._dispatcher.left == left, guilty=guilty)

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
        self._look(work, mailbox)
        if message.get("ended") == "DONE":
            return None
        why = _last_line(message.get("failed") or message.get("died") or f"it ended {message.get('ended')}")
        if self._workers.direct and ("died" in message or any(map(self._is_dead, self._letters()))):
            return why
        raise RunnerError(
            f"Beam's {self._name} failed: {why}. What is finished stays, and --resume goes on. The last that it said:\n"
            f"{process.last_words()}"
        )

    def _part(self, died: str | None) -> bool:
        """The pipeline is over, and so are its workers, all of them; whether any was to blame for its death."""
        blamed = False
        for letter, hand in self._hands.values():
            if letter.observed is not None:
                self._dispatcher.heard(hand, {"observed": letter.observed})
            if died is None:
                self._dispatcher.released(hand)
                continue
            guilty = self._is_dead(letter)
            blamed = blamed or guilty
            # The others die only now, with the pipeline.
            self._dispatcher.died(hand, f"({died})", by_itself=guilty)
        self._hands.clear()
        return blamed

    def _check(self, work: Work, died: str | None, *, nothing: bool, guilty: bool) -> None:
        """Raise what there is to say of a pipeline that has done nothing, so that it is not begun for ever."""
        if not nothing or self._draining:
            self._unloaded = 0
            return
        if died is None:
            raise RunnerError(
                f"Beam's {self._name} says that its pipeline is done, and the ledger in {work.ledger.destination} lacks "
                f"{self._dispatcher.left} tasks, none of which was done. What is finished stays: choose another runner, then "
                "--resume"
            )
        self._unloaded = 0 if guilty else self._unloaded + 1
        if self._unloaded >= DEATHS_MAX:
            raise ModelLoadError(self._model, f"its workers end before they do anything ({died})")

    # What workers tell

    def _look(self, work: Work, mailbox: Mailbox) -> None:
        """Read letters; the run's progress is up to date then. Raises what a worker tells that broke its tasks."""
        for letter in mailbox.read():
            if letter.pipeline == self._pipeline:  # not of one that nobody could end
                self._take(letter, work)
        self._dispatcher.told()

    def _take(self, letter: Letter, work: Work) -> None:
        _, hand = self._hands.get(letter.worker) or (letter, Hand(self._locality, ready=True))
        if letter.worker not in self._hands:
            self._dispatcher.hands.append(hand)
        self._hands[letter.worker] = letter, hand
        for number in letter.done:
            record = None if number in hand.done else work.ledger.task(number)
            if record is not None:
                self._dispatcher.heard(hand, {"task": record.to_json().decode()})
        self._dispatcher.heard(hand, {"tally": letter.tally.to_json()})
        hand.assigned = letter.doing
        if letter.error is not None:
            self._dispatcher.heard(hand, {"error": letter.error})

    def _letters(self) -> list[Letter]:
        return [letter for letter, _ in self._hands.values()]

    @staticmethod
    def _is_dead(letter: Letter) -> bool:
        """Whether a worker's process, which would be on this machine, is gone, and was doing something."""
        return bool(letter.doing) and letter.host == socket.gethostname() and not _alive(letter.pid)

    @property
    def _name(self) -> str:
        return self._workers.runner or "DirectRunner"

    def drain(self) -> None:
        """See `Runner.drain`. Workers hear of it within seconds."""
        self._draining = True


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else text
