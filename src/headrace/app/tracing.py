"""The tracer of a process, if the environment requests traces."""

import os
from collections.abc import Callable
from dataclasses import dataclass

import headrace
from headrace.jobs.tracing import JobTracer
from headrace.server.observation import Observer, tracing_wanted


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Tracing:
    """The parts of a process's tracer. Without traces there are none.

    `close` exports the remaining spans. Call it after all services have stopped.
    """

    requests: Observer | None = None
    jobs: JobTracer | None = None
    close: Callable[[], None] = _nothing


def open_tracing() -> Tracing:
    """Return the tracer that the ``OTEL_*`` variables request. A process opens one.

    Raises ConfigError for an exporter, or a protocol of it, that is not available.
    """
    if not tracing_wanted(os.environ):
        return Tracing()
    from headrace.server.tracing import tracer_from  # noqa: PLC0415 - optional dependency

    tracer = tracer_from(os.environ, headrace.__version__)
    return Tracing(tracer, tracer.jobs, tracer.close)
