"""Run tasks as pipelines of Apache Beam, on any of its runners. This process does not import Beam.

Beam distributes the tasks, and may run one twice. The ledger decides which tasks are finished, both
here and in the workers. A pipeline may end by itself or because a worker of it died; the tasks that
the ledger lacks then go into another pipeline.
"""

import importlib.util
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from secrets import token_hex
from typing import Final, Self

from typing_extensions import override

from headrace.core.errors import MissingExtraError, ModelLoadError, RunnerError
from headrace.core.predictor import Predictor
from headrace.runners.engines import BeamWorkers
from headrace.runners.messages import Message, StatusStore, WorkerStatus, receive, send
from headrace.runners.scheduler import DEATHS_MAX, ScheduledRunner, WorkerHandle
from headrace.runners.worker import Opener
from headrace.runs.ledger import Ledger
from headrace.runs.plan import Task
from headrace.runs.tasks import Locality
from headrace.runs.work import RunWork

_CANCEL_S: Final = 30.0
"""The maximal duration of a cancellation."""
_LINES_SHOWN: Final = 3
_OUTPUT_BYTES_MAX: Final = 64 << 10
"""The size of the retained end of Beam's output."""
_OUTPUT_END_S: Final = 2.0
"""The maximal wait for the end of the output after the pipeline's last message."""
_START: Final = "import sys; from headrace.runners.beam_pipeline import main; main(sys.argv[1])"

ASSUMED_WORKERS: Final = 64
"""The assumed number of workers of a Beam runner that decides it itself."""


@dataclass(frozen=True, slots=True)
class PipelineOrder:
    """The contents of a pipeline.

    `pipeline` is its unique name, `options` are Beam's. If `direct`, Beam's DirectRunner runs it on
    this machine.
    """

    opener: Opener
    pipeline: str
    region: str | None
    assignments: Sequence[Message]
    options: Sequence[str]
    direct: bool


class PipelineProcess:
    """A running pipeline with its local processes. As a context manager it always ends them.

    Args:
        order: The contents of the pipeline.
        environ: Additional environment variables of the pipeline and its local workers.
    """

    def __init__(self, order: PipelineOrder, environ: Mapping[str, str] | None = None) -> None:
        run_end, worker_end = socket.socketpair()
        self._output = bytearray()
        try:
            # A session of its own, so that Ctrl-C reaches the run only, and all processes can be
            # killed.
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-c", _START, str(worker_end.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                pass_fds=(worker_end.fileno(),),
                env={**os.environ, **(environ or {}), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,
            )
        except OSError as error:
            run_end.close()
            raise RunnerError(f"cannot start a process for the Beam pipeline: {error}") from error
        finally:
            worker_end.close()
        # Processes that it leaves behind may keep the pipe open; the daemon thread does not block
        # the exit.
        self._collector = threading.Thread(
            target=self._collect_output, name="headrace-beam-says", daemon=True
        )
        self._collector.start()
        self.connection = Connection(run_end.detach())
        self.connection.send_bytes(pickle.dumps(order))

    def receive(self) -> Message:
        """Return the message ``ended``, ``failed`` or ``died``, once `connection` is readable."""
        try:
            return receive(self.connection)
        except (EOFError, OSError):
            return {"died": f"the pipeline's own process ended with status {self._process.wait()}"}

    def _collect_output(self) -> None:
        """Read the process's output, so that it never blocks, and keep the end."""
        assert self._process.stdout is not None
        with self._process.stdout as output:
            while chunk := output.read(_OUTPUT_BYTES_MAX):
                self._output += chunk
                del self._output[:-_OUTPUT_BYTES_MAX]

    def output_tail(self) -> str:
        """Return the end of Beam's output, after the pipeline has reported its end."""
        self._collector.join(_OUTPUT_END_S)
        lines = [line for line in bytes(self._output).decode(errors="replace").splitlines() if line.strip()]
        return "\n".join(lines[-_LINES_SHOWN:])

    def cancel(self) -> None:
        """Cancel the pipeline, also on other machines, and wait for its end."""
        with suppress(OSError, subprocess.TimeoutExpired):
            send(self.connection, {"cancel": True})
            self._process.wait(_CANCEL_S)

    def __enter__(self) -> Self:
        """Return the started process."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the pipeline's local processes."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.connection.close()
        self._collector.join(_OUTPUT_END_S)


class BeamRunner(ScheduledRunner):
    """A runner of tasks on Beam.

    As a context manager it loads the model's metadata; `run` runs pipelines.

    Args:
        opener: Opens a worker. It is sent to the workers, so it contains no secrets.
        workers: The Beam runner and its options.
        predictor: The run's own predictor, not started. It is started once for the metadata.
        model: The model's name, for errors.
        environ: Additional environment variables of workers on this machine.
        locality: The region of the workers.
        prepare: Writes files for the workers next to the ledger, once the ledger exists.

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
        prepare: Callable[[Ledger], None],
    ) -> None:
        if importlib.util.find_spec("apache_beam") is None:
            raise MissingExtraError("beam", "a transform on Apache Beam")
        super().__init__(model, locality)
        self._opener = opener
        self._workers = workers
        self._predictor = predictor
        self._environ = environ
        self._prepare = prepare
        self._pipeline = ""
        """The name of the running pipeline."""
        self._workers_by_name: dict[str, tuple[WorkerStatus, WorkerHandle]] = {}
        """The workers of the pipeline by name, with their last status."""
        self._load_deaths = 0
        """Consecutive pipelines whose workers died before they started a task."""

    def __enter__(self) -> Self:
        """Load the model for its metadata, and unload it. Raises the errors of loading."""
        self._predictor.start()
        try:
            self._scheduler.loaded = self._predictor.metadata
        finally:
            self._predictor.stop(drain=False)
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: pipelines end with `run`."""

    @override
    def run(self, work: RunWork, tasks: Sequence[Task]) -> bool:
        """Run the tasks. The workers read their checkpoints from the ledger.

        A task that kills workers of the DirectRunner is excluded; after all others,
        InstanceLostError is raised. Raises RunnerError if Beam fails, or ends without having
        finished any remaining task.
        """
        status_store = StatusStore(work.ledger)
        status_store.clear()
        self._prepare(work.ledger)
        tasks_here = self._locality.ordered(tasks)
        self._scheduler.begin(work, tasks_here)
        while self._scheduler.left and not self._draining:
            self._run_pipeline(work, status_store)
        return self._scheduler.complete(drained=self._draining) and len(tasks_here) == len(tasks)

    # One pipeline

    def _run_pipeline(self, work: RunWork, status_store: StatusStore) -> None:
        """Run the remaining tasks in one pipeline, as far as it gets."""
        workers, left = self._workers, self._scheduler.left
        self._pipeline = token_hex(6)
        count = workers.direct_workers if workers.direct else ASSUMED_WORKERS
        pipeline_order = PipelineOrder(
            opener=self._opener,
            pipeline=self._pipeline,
            region=self._locality.region,
            assignments=[a.to_json() for a in self._scheduler.assign_all(workers=count)],
            options=workers.all_options,
            direct=workers.direct,
        )
        exit_reason: str | None = None
        with PipelineProcess(pipeline_order, self._environ) as process:
            try:
                exit_reason = self._wait(process, work, status_store)
            finally:
                task_to_blame = self._release_workers(exit_reason)
        self._scheduler.recover()
        self._scheduler.update_progress()
        self._check_progress(
            work, exit_reason, nothing=self._scheduler.left == left, task_to_blame=task_to_blame
        )

    def _wait(self, process: PipelineProcess, work: RunWork, status_store: StatusStore) -> str | None:
        """Poll the workers' statuses until the pipeline ends.

        Return the reason if a worker's death ended it.
        """
        drain_requested = False
        try:
            while not wait([process.connection], self._workers.poll_s):
                self._poll(work, status_store)
                if self._draining and not drain_requested:
                    status_store.request_drain()
                    drain_requested = True
        except BaseException:
            process.cancel()
            raise
        message = process.receive()
        self._poll(work, status_store)
        if message.get("ended") == "DONE":
            return None
        why = _last_line(
            message.get("failed") or message.get("died") or f"its state is {message.get('ended')}"
        )
        if self._workers.direct and ("died" in message or any(map(self._is_dead, self._statuses()))):
            return why
        raise RunnerError(
            f"Beam's {self._name} failed: {why}. Finished tasks stay; continue with --resume. The end of its "
            "output:\n"
            f"{process.output_tail()}"
        )

    def _release_workers(self, exit_reason: str | None) -> bool:
        """Release all workers of an ended pipeline.

        Return True if one of them was the cause of its death.
        """
        task_to_blame_found = False
        for status, handle in self._workers_by_name.values():
            if status.observed is not None:
                self._scheduler.on_message(handle, {"observed": status.observed})
            if exit_reason is None:
                self._scheduler.release(handle)
                continue
            task_to_blame = self._is_dead(status)
            task_to_blame_found = task_to_blame_found or task_to_blame
            # The other workers end with the pipeline.
            self._scheduler.on_worker_died(handle, f"({exit_reason})", blame_task=task_to_blame)
        self._workers_by_name.clear()
        return task_to_blame_found

    def _check_progress(
        self, work: RunWork, exit_reason: str | None, *, nothing: bool, task_to_blame: bool
    ) -> None:
        """Raise the error of a pipeline that finished no task, so that it is not repeated forever."""
        if not nothing or self._draining:
            self._load_deaths = 0
            return
        if exit_reason is None:
            raise RunnerError(
                f"Beam's {self._name} reports that its pipeline is done, but it finished none of the "
                f"{self._scheduler.left} tasks that the ledger in {work.ledger.destination} lacks. Finished "
                "tasks stay: choose another runner, then --resume"
            )
        self._load_deaths = 0 if task_to_blame else self._load_deaths + 1
        if self._load_deaths >= DEATHS_MAX:
            raise ModelLoadError(self._model, f"its workers end before they do anything ({exit_reason})")

    # What workers tell

    def _poll(self, work: RunWork, status_store: StatusStore) -> None:
        """Read the workers' statuses and update the progress.

        Raises an error that a worker reports.
        """
        for status in status_store.read():
            if (
                status.pipeline == self._pipeline
            ):  # an earlier pipeline that could not be cancelled may still write
                self._update(status, work)
        self._scheduler.update_progress()

    def _update(self, status: WorkerStatus, work: RunWork) -> None:
        _, handle = self._workers_by_name.get(status.worker) or (
            status,
            WorkerHandle(self._locality, ready=True),
        )
        if status.worker not in self._workers_by_name:
            self._scheduler.handles.append(handle)
        self._workers_by_name[status.worker] = status, handle
        for number in status.done:
            record = None if number in handle.done else work.ledger.task(number)
            if record is not None:
                self._scheduler.on_message(handle, {"task": record.to_json().decode()})
        self._scheduler.on_message(handle, {"tally": status.counters.to_json()})
        handle.assigned = status.doing
        if status.error is not None:
            self._scheduler.on_message(handle, {"error": status.error})

    def _statuses(self) -> list[WorkerStatus]:
        return [status for status, _ in self._workers_by_name.values()]

    @staticmethod
    def _is_dead(status: WorkerStatus) -> bool:
        """Return True if a worker's process on this machine is gone although it had tasks."""
        return bool(status.doing) and status.host == socket.gethostname() and not _alive(status.pid)

    @property
    def _name(self) -> str:
        return self._workers.runner or "DirectRunner"

    @override
    def drain(self) -> None:
        """Drain the workers. They notice within seconds."""
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
