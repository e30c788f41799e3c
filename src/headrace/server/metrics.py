"""Prometheus metrics, created from snapshots at each scrape.

Only this module imports prometheus_client. It counts nothing: engines and listeners keep plain
numbers in this process, for every isolation of their instances, and a scrape reads them. A reloaded
model counts from zero, as its statistics do; Prometheus sees a counter reset.
"""

import asyncio
import gzip
import logging
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import Final, Literal

from headrace.core.errors import (
    AccessError,
    MissingExtraError,
    ModelNotFoundError,
    SequenceFullError,
    SequenceGoneError,
    SequenceLostError,
    TooManySequencesError,
)
from headrace.core.sequence import SequenceEnd
from headrace.core.statistics import Histogram, ModelStatistics, SequenceStatistics
from headrace.jobs.access import Scope
from headrace.server.application import Guard
from headrace.server.dataplane import Dataplane
from headrace.server.errors import INTERNAL_ERROR, NOT_FOUND, error_headers, status_of
from headrace.server.http import AsgiReceive, AsgiScope, AsgiSend, Headers
from headrace.server.observation import ResponseCounters

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Metric, ProcessCollector
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        InfoMetricFamily,
    )
    from prometheus_client.registry import Collector
except ImportError as _error:
    raise MissingExtraError("serve", "metrics") from _error

_log = logging.getLogger("headrace.server")

GZIP_BYTES_MIN: Final = 4096

REFUSALS: Final = tuple(
    error.kind for error in (SequenceFullError, SequenceGoneError, SequenceLostError, TooManySequencesError)
)
MetricKind = Literal["counter", "gauge", "histogram", "info"]
_MODEL: Final = ("model", "version")


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its exposed name, its type, its labels and its description."""

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    description: str


MetricValue = float | Histogram
MetricValues = Sequence[tuple[tuple[str, ...], MetricValue]]
"""The values of a metric, each with the values of its labels."""
MetricSource = Callable[[], Iterable[tuple[Family, MetricValues]]]
"""A reader of further metrics. Any thread may call it."""
_Values = list[tuple[tuple[str, ...], MetricValue]]
"""The values of a metric for one model version, each with the labels after name and version."""
_Read = Callable[[ModelStatistics], _Values]


def _requests(s: ModelStatistics) -> _Values:
    return [
        (("success",), s.success.count),
        (("failed",), s.fail.count),
        (("cancelled",), s.cancelled),
        (("expired",), s.expired),
        (("refused",), s.refused),
    ]


def _rows(s: ModelStatistics) -> _Values:
    return [(("success",), s.rows), (("failed",), s.failed_rows + s.error_rows)]


def _close_reasons(s: ModelStatistics) -> _Values:
    return [((why,), count) for why, count in sorted(s.close_reasons.items())]


def _compute(s: ModelStatistics) -> _Values:
    return [
        (("input",), s.compute_input.ns / 1e9),
        (("infer",), s.compute_infer.ns / 1e9),
        (("output",), s.compute_output.ns / 1e9),
    ]


def _of_steps(read: Callable[[SequenceStatistics], _Values]) -> _Read:
    """Return a reader that yields values only for models with a `step`."""
    return lambda s: [] if s.sequences is None else read(s.sequences)


def _ends(s: SequenceStatistics) -> _Values:
    return [((why.value,), s.ends.get(why.value, 0)) for why in SequenceEnd]


def _refused(s: SequenceStatistics) -> _Values:
    return [((kind,), s.refused.get(kind, 0)) for kind in REFUSALS]


def _of_model(
    name: str, kind: MetricKind, read: str | _Read, description: str, *labels: str
) -> tuple[Family, _Read]:
    """Return a metric of models and its reader. `read` may name a field of `ModelStatistics`."""
    if isinstance(read, str):
        value = attrgetter(read)
        return Family(name, kind, _MODEL, description), lambda s: [((), value(s))]
    return Family(name, kind, (*_MODEL, *labels), description), read


_OF_MODELS: Final = (
    _of_model(
        "headrace_requests_total",
        "counter",
        _requests,
        "Finished requests without streams, by outcome: success, failed, cancelled, expired (deadline) or "
        "refused (full queue).",
        "outcome",
    ),
    _of_model(
        "headrace_rows_total",
        "counter",
        _rows,
        "Rows of successful requests, and failed rows, alone or with their request.",
        "outcome",
    ),
    _of_model("headrace_calls_total", "counter", "calls", "Calls of the model's predict or step."),
    _of_model(
        "headrace_retries_total",
        "counter",
        "retries",
        "Additional calls to find the failing rows of a failed batch.",
    ),
    _of_model("headrace_batch_rows", "histogram", "batch_rows", "Rows of one call of the model."),
    _of_model(
        "headrace_batches_closed_total",
        "counter",
        _close_reasons,
        "Closed batches by reason; calls of inline instances are not batches.",
        "reason",
    ),
    _of_model(
        "headrace_queue_seconds",
        "histogram",
        "queue_s",
        "Seconds from the arrival of a request to the start of its call.",
    ),
    _of_model(
        "headrace_request_seconds",
        "histogram",
        "request_s",
        "Seconds from the arrival of a request in the engine to its response, success or failure.",
    ),
    _of_model(
        "headrace_compute_seconds_total",
        "counter",
        _compute,
        "Seconds in calls: input builds the batch, infer is the model, output checks and splits its result.",
        "step",
    ),
    _of_model(
        "headrace_busy_seconds_total",
        "counter",
        "busy_s",
        "Seconds in which instances called the model, summed over the instances.",
    ),
    _of_model("headrace_instances", "gauge", "instances", "Instances (copies) of the model."),
    _of_model("headrace_instance_restarts_total", "counter", "restarts", "Restarts of instances that died."),
    _of_model("headrace_queue_requests", "gauge", "waiting_requests", "Waiting requests."),
    _of_model("headrace_queue_rows", "gauge", "waiting_rows", "Waiting rows."),
    _of_model(
        "headrace_queue_oldest_seconds",
        "gauge",
        "oldest_waiting_s",
        "Age in seconds of the oldest waiting request; 0 without one.",
    ),
    _of_model("headrace_in_flight_requests", "gauge", "in_flight", "Requests that wait or run."),
    _of_model(
        "headrace_held_requests",
        "gauge",
        "held_requests",
        "Requests of jobs and runs that yield to live requests: they wait for their share of the time.",
    ),
    _of_model(
        "headrace_background_share",
        "gauge",
        "background_share",
        "Share of the time that jobs and runs may use beside live requests, 0 to 1.",
    ),
    _of_model("headrace_streams_total", "counter", "streams", "Started streams."),
    _of_model("headrace_open_streams", "gauge", "open_streams", "Open streams."),
    _of_model(
        "headrace_stream_items_total",
        "counter",
        "stream_items",
        "Responses of streams, counted at the end of their stream.",
    ),
    _of_model(
        "headrace_live_sequences",
        "gauge",
        _of_steps(lambda s: [((), s.live)]),
        "Live sequences of a model with a step, including requests that are sequences by themselves.",
    ),
    _of_model(
        "headrace_sequences_ended_total",
        "counter",
        _of_steps(_ends),
        "Ended sequences by reason: ended (by client or model), restarted, cancelled, idle, timed_out, "
        "evicted, instance_lost or stopped.",
        "reason",
    ),
    _of_model(
        "headrace_sequences_refused_total",
        "counter",
        _of_steps(_refused),
        "Requests that no sequence accepted, by error: sequence_gone, sequence_full, sequence_lost or "
        "too_many_sequences; no other metric of the model counts them.",
        "reason",
    ),
    _of_model(
        "headrace_steps_total",
        "counter",
        _of_steps(lambda s: [((), s.steps)]),
        "Completed steps; headrace_batch_rows has the number of steps in one call.",
    ),
    _of_model(
        "headrace_step_interval_seconds",
        "histogram",
        _of_steps(lambda s: [((), s.interval_s)]),
        "Seconds between the ends of two successive steps of one request.",
    ),
    _of_model(
        "headrace_uptime_seconds",
        "gauge",
        "uptime_s",
        "Seconds since the model was ready; the other metrics of the model count from then.",
    ),
)
_READY: Final = Family(
    "headrace_model_ready",
    "gauge",
    _MODEL,
    "1 if a version serves requests; 0 if it is not loaded, an instance is missing, its checkpoint store "
    "cannot be reached, or the server drains.",
)
_RESPONSES: Final = Family(
    "headrace_answers_total",
    "counter",
    ("door", "action", "status"),
    "Responses by status: an HTTP status (499: the client had disconnected), or a gRPC code.",
)
_BROKEN: Final = Family(
    "headrace_broken_streams_total",
    "counter",
    ("door", "action", "status"),
    "Responses that failed after their start, by the status of the error; headrace_answers_total counts "
    "them, too.",
)
_BUILD: Final = Family("headrace_build_info", "info", ("version", "python"), "Always 1.")

FAMILIES: Final = (*(family for family, _ in _OF_MODELS), _READY, _RESPONSES, _BROKEN, _BUILD)
"""The metrics of models and servers; `headrace.server.jobs.metrics` has those of jobs."""


def _metric(family: Family) -> CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily:
    kinds = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    return kinds[family.kind](family.name, family.description, labels=family.labels)


def _add(metric: Metric, labels: Sequence[str], value: MetricValue) -> None:
    if isinstance(metric, HistogramMetricFamily):
        assert isinstance(value, Histogram)
        # The text format writes bounds as floats, also whole numbers.
        bounds = [*(str(float(bound)) for bound in value.bounds), "+Inf"]
        buckets = list(zip(bounds, map(float, accumulate(value.counts)), strict=True))
        metric.add_metric(labels, buckets, value.total)
    elif isinstance(metric, CounterMetricFamily | GaugeMetricFamily):
        assert not isinstance(value, Histogram)
        metric.add_metric(labels, value)


class HeadraceCollector(Collector):
    """A collector of the numbers of a dataplane, its listeners and further sources.

    Any thread may call it. It never calls a model.
    """

    def __init__(
        self,
        dataplane: Dataplane,
        counters: Sequence[ResponseCounters] = (),
        sources: Sequence[MetricSource] = (),
    ) -> None:
        self._dataplane = dataplane
        self._counters = counters
        self._sources = sources

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values, so that a registry need not collect them."""
        return [_metric(family) for family in FAMILIES if family.kind != "info"]

    def collect(self) -> Iterator[Metric]:
        """Yield one metric for each of `FAMILIES`, and those of the sources."""
        statistics = self._dataplane.statistics()
        for family, read in _OF_MODELS:
            metric = _metric(family)
            for s in statistics:
                for labels, value in read(s):
                    _add(metric, (s.name, s.version, *labels), value)
            yield metric
        yield self._ready()
        yield _counted(_RESPONSES, [(c.protocol, dict(c.sent)) for c in self._counters])
        yield _counted(_BROKEN, [(c.protocol, dict(c.broken)) for c in self._counters])
        build = {"version": self._dataplane.version, "python": platform.python_version()}
        yield InfoMetricFamily(_BUILD.name.removesuffix("_info"), _BUILD.description, value=build)
        for source in self._sources:
            for family, values in source():
                metric = _metric(family)
                for labels, value in values:
                    _add(metric, labels, value)
                yield metric

    def _ready(self) -> Metric:
        metric = _metric(_READY)
        for entry in self._dataplane.index():
            try:
                ready = self._dataplane.model_ready(entry.name, entry.version)
            except ModelNotFoundError:
                continue  # the version was unloaded meanwhile
            _add(metric, (entry.name, entry.version), float(ready))
        return metric


def _counted(family: Family, protocols: Iterable[tuple[str, Mapping[tuple[str, int | str], int]]]) -> Metric:
    metric = _metric(family)
    for protocol, counts in protocols:
        for (action, status), count in sorted(counts.items(), key=str):
            _add(metric, (protocol, action, str(status)), count)
    return metric


class Metrics(Collector):
    """All exposed metrics: headrace's own, those of the process, and those in the default registry.

    Models may add metrics to the default registry. A name that occurs twice is exposed once, with
    headrace's values first. If a collector of the default registry fails, the rest of that registry
    is missing from the scrape, and the error is logged.
    """

    def __init__(
        self,
        dataplane: Dataplane,
        counters: Sequence[ResponseCounters] = (),
        sources: Sequence[MetricSource] = (),
        *,
        others: Collector = REGISTRY,
    ) -> None:
        self._own = CollectorRegistry(auto_describe=False)
        self._own.register(HeadraceCollector(dataplane, counters, sources))
        ProcessCollector(registry=self._own)
        self._others = others

    def collect(self) -> Iterator[Metric]:
        """Yield every metric once."""
        seen: set[str] = set()
        for metric in self._own.collect():
            seen.add(metric.name)
            yield metric
        try:
            for metric in self._others.collect():
                if metric.name not in seen:
                    seen.add(metric.name)
                    yield metric
        except Exception as error:  # noqa: BLE001 - a model's collector may raise anything
            _log.error("metrics of the default registry could not be collected", exc_info=error)


class MetricsApp:
    """An ASGI application for ``GET /metrics``.

    The text format or OpenMetrics is selected by ``Accept``, gzip by ``Accept-Encoding``. Scrapes
    run one at a time in a thread, so that requests proceed meanwhile. `guard` checks the ``Host`` and,
    if there are `scopes`, that the API key has one of them.
    """

    def __init__(
        self, metrics: Collector, guard: Guard | None = None, *, scopes: Sequence[Scope] = ()
    ) -> None:
        self._metrics = metrics
        self._guard = guard or Guard()
        self._scopes = tuple(scopes)
        self._scraping = asyncio.Lock()

    async def __call__(self, scope: AsgiScope, _receive: AsgiReceive, send: AsgiSend) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http":
            return
        if scope["path"] != "/metrics" or scope["method"] not in ("GET", "HEAD"):
            await _respond(send, NOT_FOUND, b"metrics are at /metrics\n", _PLAIN)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        try:
            self._check(scope["method"], headers)
        except AccessError as error:
            status = status_of(error)
            await _respond(send, status.http, f"{error}\n".encode(), (*_PLAIN, *error_headers(status)))
            return
        accept = headers.get(b"accept", b"").decode("latin-1")
        compressed = b"gzip" in headers.get(b"accept-encoding", b"")
        try:
            async with self._scraping:
                body, extra = await asyncio.to_thread(self._scrape, accept, compressed=compressed)
        except Exception as error:  # noqa: BLE001 - some values fit no text format
            _log.error("metrics could not be created", exc_info=error)
            await _respond(
                send, INTERNAL_ERROR, b"metrics could not be created: see the server's log\n", _PLAIN
            )
            return
        await _respond(send, 200, body, extra)

    def _check(self, method: str, headers: Mapping[bytes, bytes]) -> None:
        self._guard.check_source(method, headers, public=True)
        if self._scopes:
            self._guard.authenticate(method, headers, *self._scopes)

    def _scrape(self, accept: str, *, compressed: bool) -> tuple[bytes, Headers]:
        encode, content_type = choose_encoder(accept)
        body = encode(self._metrics)
        headers = [(b"content-type", content_type.encode())]
        if compressed and len(body) >= GZIP_BYTES_MIN:
            return gzip.compress(body, 1), [*headers, (b"content-encoding", b"gzip")]
        return body, headers


_PLAIN: Final = [(b"content-type", b"text/plain; charset=utf-8")]


async def _respond(send: AsgiSend, status: int, body: bytes, headers: Headers) -> None:
    all_headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})
