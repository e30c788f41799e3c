"""A transform's tasks as a Beam pipeline: the process that runs it, and what its workers do. The one door to apache_beam here.

The other end is `headrace.transforms.runners.beam`, which starts this as a process of its own: a pipeline that hangs, as Beam's
DirectRunner does when a worker process of its is killed, can then be ended.
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
from headrace.transforms.runners.beam_process import PipelineOrder
from headrace.transforms.runners.messages import Assignment, Message, receive, send
from headrace.transforms.runners.seat import Seat

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

_log = logging.getLogger("headrace.transform")

_CANCELLED: Final = 5
"""The exit status of a pipeline that was told to end."""


_seats: dict[str, Seat] = {}
_seats_lock = threading.Lock()


def _seat(opener: bytes, pipeline: str, region: str | None) -> Seat:
    """This process's seat for a pipeline; that of one before is closed."""
    with _seats_lock:
        found = _seats.get(pipeline)
        if found is None:
            for other in _seats.values():
                other.close()
            _seats.clear()
            found = _seats[pipeline] = Seat(pickle.loads(opener), pipeline, region)  # noqa: S301 - what this pipeline's own run sent
        return found


class DoTasks(beam.DoFn):  # pyright: ignore[reportUntypedBaseClass] - Beam is untyped
    """Does assignments; gives the number of each task that was to be done. What a task came to is in the ledger."""

    def __init__(self, opener: bytes, pipeline: str, region: str | None) -> None:
        self._opener, self._pipeline, self._region = opener, pipeline, region

    def process(self, element: Message) -> Iterator[int]:
        """One assignment."""
        assignment = Assignment.from_json(element)
        _seat(self._opener, self._pipeline, self._region).do(assignment)
        metrics.counter("headrace", "tasks").inc(len(assignment.tasks))
        yield from assignment.tasks


def run_pipeline(order: PipelineOrder) -> str:
    """Run it to its end; the state that it ended in. Raises what Beam raises."""
    given = options.PipelineOptions(list(order.options))
    opener = pickle.dumps(order.opener)
    runner = FnApiRunner() if order.direct else None
    pipeline = beam.Pipeline(runner=runner, options=given)
    _ = (
        pipeline
        | "Assignments" >> beam.Create(list(order.assignments), reshuffle=False)
        # Whatever is fused with a source is done where the source is read: in one place.
        | "Spread" >> beam.Reshuffle()
        | "Do tasks" >> beam.ParDo(DoTasks(opener, order.pipeline, order.region))
    )
    result = pipeline.run()
    _canceller.append(result)
    return str(result.wait_until_finish())


_canceller: list[Any] = []
"""The pipeline under way, for whoever ends it."""


def main(connection_fd: str) -> None:
    """A pipeline process's life, from its command line."""
    connection = Connection(int(connection_fd))
    order: PipelineOrder = pickle.loads(connection.recv_bytes())  # noqa: S301 - of the process that started this one
    _tell_deaths(connection)
    threading.Thread(target=_listen, args=[connection], name="headrace-orders", daemon=True).start()
    try:
        state = run_pipeline(order)
    except Exception as error:  # noqa: BLE001 - told to the run, which raises it
        _log.warning("pipeline failed", exc_info=True)
        send(connection, {"failed": f"{type(error).__name__}: {error}"})
    else:
        send(connection, {"ended": state})
    sys.stdout.flush()
    sys.stderr.flush()
    # Beam's threads and servers would go on for a while, and there is nothing that they have left to do.
    os._exit(0)


def _listen(connection: Connection) -> None:
    """The run says that the pipeline is to end, or has gone itself."""
    try:
        receive(connection)
    except (EOFError, OSError):
        _log.debug("the run has gone")
    for result in _canceller:
        try:
            result.cancel()
        except Exception:  # noqa: BLE001 - it may have ended, or its runner cannot cancel
            _log.warning("the pipeline could not be cancelled", exc_info=True)
    os._exit(_CANCELLED)


def _tell_deaths(connection: Connection) -> None:
    """Have the run told when a worker process of Beam's DirectRunner ends: the pipeline will never.

    The thread that waits for such a process raises then, and nobody hears it: its bundles are waited for without end.
    """
    before = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        before(args)
        if args.thread is not None and args.thread.name == "run_worker":
            send(connection, {"died": str(args.exc_value)})

    threading.excepthook = hook
