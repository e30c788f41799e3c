"""Tasks in several processes on this machine: each has its own interpreter and its own copy of the model.

The run hands out tasks and waits; workers read, predict, write and commit by themselves, and the ledger is the truth: a
worker that dies costs what it had not committed, which another one does again.
"""

import logging
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Final, Self, cast

from headrace.core.errors import InstanceLostError, ModelLoadError
from headrace.core.predictor import PredictorStatistics
from headrace.core.tensor import ModelMetadata
from headrace.transforms.messages import (
    Assignment,
    Message,
    Tally,
    add_up,
    counts_of,
    error_of,
    metadata_of,
    receive,
    send,
    statistics_of,
)
from headrace.transforms.observation import Observation
from headrace.transforms.plan import Task
from headrace.transforms.records import Checkpoint, Spot, TaskRecord
from headrace.transforms.work import Work

_log = logging.getLogger("headrace.transform")

ASSIGNED_TASKS_MAX: Final = 8
ASSIGNMENTS_AIM: Final = 4
"""How many assignments each worker should get, so that none is left with much to do at the end."""
DEATHS_MAX: Final = 2
"""A task that was being done when this many workers died is what kills them, and is left out."""
LEFT_OUT_MAX: Final = 3
"""A model that so many tasks kill is not killed by what is in them."""
_WAIT_S: Final = 0.5
_STOP_S: Final = 30.0
"""How long a worker may take to end once it is told to."""


@dataclass(slots=True)
class _Process:
    """One worker, as the run sees it."""

    process: subprocess.Popen[bytes]
    connection: Connection
    ready: bool = False
    assigned: tuple[int, ...] = ()
    done: set[int] = field(default_factory=set[int])
    """Of what is assigned."""
    tally: Tally = field(default_factory=Tally)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.connection.close()


class ProcessRunner:
    """Workers, each a process of its own; as a context manager it starts them, and ends them whatever happens.

    Args:
        command: What a worker is started with; the number of its connection's file descriptor is added.
        workers: How many.
        model: The model's name, for errors.
        environ: Of the workers, beside what this process has; it may hold credentials, which a command line would show.
    """

    def __init__(
        self, command: Sequence[str], workers: int, *, model: str, environ: Mapping[str, str] | None = None
    ) -> None:
        self._command = list(command)
        self._environ = None if environ is None else {**os.environ, **environ}
        self._count = workers
        self._model = model
        self._workers: list[_Process] = []
        self._metadata: ModelMetadata | None = None
        self._gone: list[Tally] = []
        """Of the workers that died."""
        self._deaths: dict[int, int] = {}
        self._left_out: list[str] = []
        """What is said of the tasks that kill workers."""
        self._unloaded = 0
        """Workers that died before they had loaded the model."""
        self._draining = False

    def start(self) -> None:
        """Start the workers, and wait until one has loaded the model. Raises what loading raises."""
        try:
            self._workers = [self._spawn() for _ in range(self._count)]
            while self._metadata is None:
                for worker in self._heard(None):
                    self._take(worker, None)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the workers: those that idle by themselves, any other at once."""
        for worker in self._workers:
            try:
                send(worker.connection, {"stop": True})
                idle = worker.ready and not worker.assigned
                worker.process.wait(_STOP_S if idle else 0.0)
            except (OSError, subprocess.TimeoutExpired):
                pass
            worker.kill()
            self._gone.append(worker.tally)
        self._workers = []

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.stop()

    @property
    def metadata(self) -> ModelMetadata:
        """See `Runner.metadata`."""
        assert self._metadata is not None, "started before"
        return self._metadata

    @property
    def pids(self) -> list[int]:
        """The workers' process numbers."""
        return [worker.process.pid for worker in self._workers]

    def run(
        self,
        work: Work,
        tasks: Sequence[Task],
        *,
        begins: Mapping[tuple[int, int], Spot],
        checkpoints: Mapping[int, Checkpoint],
    ) -> bool:
        """See `Runner.run`. Checkpoints are read by the workers themselves, from the ledger.

        A task that kills workers is left out; once all others are done, it raises InstanceLostError.
        """
        del checkpoints
        left = deque(task.number for task in tasks)
        wanted = frozenset(left)
        before = counts_of(work.progress)
        self._assign(work, left, begins)
        while any(worker.assigned for worker in self._workers) or (left and not self._draining):
            for worker in self._heard(_WAIT_S):
                try:
                    self._take(worker, work)
                except (EOFError, OSError):
                    self._died(worker, work, left)
            add_up(work.progress, self._tallies(), before)
            work.on_batch(None)
            self._assign(work, left, begins)
        if self._left_out and not self._draining:
            raise self._lost()
        return not left and all(work.ledger.task(number) is not None for number in wanted)

    def _tallies(self) -> list[Tally]:
        return [*self._gone, *(worker.tally for worker in self._workers)]

    def drain(self) -> None:
        """See `Runner.drain`."""
        self._draining = True
        for worker in list(self._workers):
            try:
                send(worker.connection, {"drain": True})
            except OSError:
                _log.debug("worker has gone", exc_info=True)

    def statistics(self) -> PredictorStatistics:
        """See `Runner.statistics`."""
        return statistics_of(self._tallies())

    def reading(self) -> Sequence[str]:
        """See `Runner.reading`."""
        return [worker.tally.reading for worker in self._workers if worker.assigned]

    def cpu_s(self) -> float:
        """See `Runner.cpu_s`."""
        return sum(tally.cpu_s for tally in self._tallies())

    def peak_memory_mb(self) -> float:
        """See `Runner.peak_memory_mb`."""
        return sum(worker.tally.peak_memory_mb for worker in self._workers)

    # Workers

    def _spawn(self) -> _Process:
        ours, theirs = socket.socketpair()
        try:
            # Of its own session: a Ctrl-C at the terminal is for the run, which then drains it.
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, *self._command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=self._environ,
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise ModelLoadError(self._model, f"a worker cannot be started: {error}") from error
        finally:
            theirs.close()
        return _Process(process, Connection(ours.detach()))

    def _heard(self, timeout_s: float | None) -> list[_Process]:
        """The workers that have something to say, or have gone."""
        by_connection = {worker.connection: worker for worker in self._workers}
        ready = wait(list(by_connection), timeout_s)
        return [by_connection[cast("Connection", connection)] for connection in ready]

    def _take(self, worker: _Process, work: Work | None) -> None:
        """One message of a worker."""
        try:
            message = receive(worker.connection)
        except EOFError:
            if self._metadata is None:
                code = worker.process.wait()
                raise ModelLoadError(
                    self._model, f"its worker ended with status {code} while it loaded"
                ) from None
            raise
        self._understand(worker, message, work)

    def _understand(self, worker: _Process, message: Message, work: Work | None) -> None:
        if "error" in message:
            raise error_of(message["error"])
        if "ready" in message:
            worker.ready = True
            self._metadata = self._metadata or metadata_of(message["ready"])
        elif "tally" in message:
            worker.tally = Tally.from_json(message["tally"])
        elif "task" in message and work is not None:
            record = TaskRecord.from_json(message["task"].encode())
            worker.done.add(record.task)
            work.on_task(record)
        elif "observed" in message and work is not None and work.observation is not None:
            work.observation.add_all(Observation.from_json(message["observed"]))
        elif "idle" in message:
            worker.assigned = ()

    def _assign(self, work: Work, left: deque[int], begins: Mapping[tuple[int, int], Spot]) -> None:
        """Give every idle worker something to do."""
        size = max(1, min(ASSIGNED_TASKS_MAX, len(left) // (self._count * ASSIGNMENTS_AIM)))
        for worker in self._workers:
            if not left or self._draining or worker.assigned or not worker.ready:
                continue
            # A task that a worker died of is tried by itself, so that it is known, and where in it.
            alone = left[0] in self._deaths
            worker.assigned = tuple(left.popleft() for _ in range(1 if alone else min(size, len(left))))
            worker.done.clear()
            shards = [s for number in worker.assigned for s in work.plan.tasks[number].shards]
            keys = {(s.index, s.number) for s in shards} & begins.keys()
            known = {key: begins[key] for key in keys}
            since_s = work.observation.began_s if work.observation is not None else None
            order = Assignment(
                worker.assigned, known, replaces=work.replaces, observed_since_s=since_s, keep_all=alone
            )
            try:
                send(worker.connection, {"do": order.to_json()})
            except OSError:
                self._died(worker, work, left)
                return

    def _died(self, worker: _Process, work: Work, left: deque[int]) -> None:
        """A worker has gone: what it had not committed is done again, by one that takes its place."""
        worker.kill()
        code = worker.process.returncode
        undone = [n for n in worker.assigned if n not in worker.done and not self._committed(n, work)]
        _log.warning("worker died", extra={"status": code, "tasks": undone})
        self._workers.remove(worker)
        self._gone.append(worker.tally)
        if undone and self._kills(undone[0], work, code):
            undone = undone[1:]
        elif not undone and not worker.ready:
            self._unloaded += 1
            if self._unloaded >= DEATHS_MAX:
                raise ModelLoadError(self._model, f"its workers end with status {code} while they load it")
        left.extendleft(reversed(undone))
        self._workers.append(self._spawn())

    @staticmethod
    def _committed(task: int, work: Work) -> bool:
        """Whether a worker had committed a task without having been able to say so."""
        record = None if work.replaces else work.ledger.task(task)
        if record is not None:
            work.on_task(record)
        return record is not None

    def _kills(self, task: int, work: Work, code: int) -> bool:
        """Whether it is this task that kills workers; raises InstanceLostError when too many do."""
        self._deaths[task] = self._deaths.get(task, 0) + 1
        if self._deaths[task] < DEATHS_MAX:
            return False
        self._left_out.append(f"with status {code} {_place(task, work)}")
        if len(self._left_out) >= LEFT_OUT_MAX:
            raise self._lost()
        return True

    def _lost(self) -> InstanceLostError:
        return InstanceLostError(
            self._model,
            f"its workers died, each time that it was tried, {'; '.join(self._left_out)}. What is finished stays: find "
            "out what kills the model there, then --resume",
        )


def _place(task: int, work: Work) -> str:
    """How far a task has come whose every batch was kept."""
    checkpoint = next(iter(work.ledger.checkpoints([task]).values()), None)
    shard = work.plan.tasks[task].shards[len(checkpoint.done) if checkpoint else 0]
    uri = work.plan.objects[shard.index].info.uri
    if checkpoint is None or not checkpoint.entries:
        part = "" if shard.whole else f" (from about byte {shard.start:,} on)"
        return f"at the first records of {uri}{part}, or soon behind them"
    since = f" of its range from about byte {shard.start:,} on" if checkpoint.relative else ""
    return f"at record {checkpoint.record:,}{since} of {uri}, or soon behind it"
