"""Run a transform's tasks in a Beam pipeline. The only module that imports apache_beam here.

`headrace.runners.beam` starts this module as a separate process, which can be killed: a
pipeline of Beam's DirectRunner hangs if one of its worker processes is killed.
"""

import logging
import os
import pickle
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any, Final

from headrace.core.errors import MissingExtraError
from headrace.runners.beam import PipelineOrder
from headrace.runners.messages import Assignment, Message, receive, send
from headrace.runners.worker import EmbeddedWorker, Opener

try:
    import apache_beam as _beam
    from apache_beam.metrics.metric import Metrics as _Metrics
    from apache_beam.options import pipeline_options as _options
    from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner as _FnApiRunner
except ImportError as _error:
    raise MissingExtraError("beam", "a transform on Apache Beam") from _error

beam: Any = _beam
metrics: Any = _Metrics
options: Any = _options
FnApiRunner: Any = _FnApiRunner

_log = logging.getLogger("headrace.runs")

_CANCELLED: Final = 5
"""The exit status of a cancelled pipeline."""
_embedded_workers: dict[str, EmbeddedWorker] = {}
_embedded_workers_lock = threading.Lock()


def _embedded_worker(opener: bytes, pipeline: str, region: str | None) -> EmbeddedWorker:
    """Return this process's worker for a pipeline. The worker of an earlier pipeline is closed."""
    with _embedded_workers_lock:
        worker = _embedded_workers.get(pipeline)
        if worker is None:
            for other in _embedded_workers.values():
                other.close()
            _embedded_workers.clear()
            opened: Opener = pickle.loads(opener)  # noqa: S301 - sent by this run
            worker = _embedded_workers[pipeline] = EmbeddedWorker(opened, pipeline, region)
        return worker


class DoTasks(beam.DoFn):  # pyright: ignore[reportUntypedBaseClass] - Beam is untyped
    """A Beam function that runs assignments and yields the numbers of their tasks.

    The results of the tasks are in the ledger.
    """

    def __init__(self, opener: bytes, pipeline: str, region: str | None) -> None:
        self._opener, self._pipeline, self._region = opener, pipeline, region

    def process(self, element: Message) -> Iterator[int]:
        """Run one assignment."""
        assignment = Assignment.from_json(element)
        _embedded_worker(self._opener, self._pipeline, self._region).do(assignment)
        metrics.counter("headrace", "tasks").inc(len(assignment.tasks))
        yield from assignment.tasks


def run_pipeline(order: PipelineOrder) -> str:
    """Run a pipeline to its end and return its final state. Raises Beam's errors."""
    pipeline_options = options.PipelineOptions(list(order.options))
    opener = pickle.dumps(order.opener)
    runner = FnApiRunner() if order.direct else None
    pipeline = beam.Pipeline(runner=runner, options=pipeline_options)
    _ = (
        pipeline
        | "Assignments" >> beam.Create(list(order.assignments), reshuffle=False)
        # Without a reshuffle, Beam would fuse the tasks with their source and run them in one
        # place.
        | "Spread" >> beam.Reshuffle()
        | "Do tasks" >> beam.ParDo(DoTasks(opener, order.pipeline, order.region))
    )
    result = pipeline.run()
    _running_pipelines.append(result)
    return str(result.wait_until_finish())


_running_pipelines: list[Any] = []
"""The running pipeline, to cancel it."""


def main(connection_fd: str) -> None:
    """Run a pipeline process; the argument is from its command line."""
    connection = Connection(int(connection_fd))
    order: PipelineOrder = pickle.loads(connection.recv_bytes())  # noqa: S301 - sent by this run
    _report_worker_deaths(connection)
    threading.Thread(target=_wait_for_cancel, args=[connection], name="headrace-orders", daemon=True).start()
    try:
        state = run_pipeline(order)
    except Exception as error:  # noqa: BLE001 - sent to the run, which raises it
        _log.warning("pipeline failed", exc_info=True)
        send(connection, {"failed": f"{type(error).__name__}: {error}"})
    else:
        send(connection, {"ended": state})
    sys.stdout.flush()
    sys.stderr.flush()
    # Beam's threads and servers would keep the process alive without further work.
    os._exit(0)


def _wait_for_cancel(connection: Connection) -> None:
    """Cancel the pipeline when the run asks for it or is gone."""
    try:
        receive(connection)
    except (EOFError, OSError):
        _log.debug("the run is gone")
    for result in _running_pipelines:
        try:
            result.cancel()
        except Exception:  # noqa: BLE001 - it may have ended, or its runner cannot cancel
            _log.warning("cannot cancel the pipeline", exc_info=True)
    os._exit(_CANCELLED)


def _report_worker_deaths(connection: Connection) -> None:
    """Report the end of a worker process of Beam's DirectRunner to the run.

    The pipeline itself never ends then: the thread that waits for the process raises, and its
    bundles stay unfinished.
    """
    before = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        before(args)
        if args.thread is not None and args.thread.name == "run_worker":
            send(connection, {"died": str(args.exc_value)})

    threading.excepthook = hook
