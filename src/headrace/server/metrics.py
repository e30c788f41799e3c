"""Metrics for Prometheus, made of snapshots when they are asked for. The one door to prometheus_client.

Nothing is counted here: engines and doors keep plain numbers, in this process whatever the isolation of their instances, and a scrape
reads them. A model that is loaded again counts from zero, as its statistics do, which Prometheus takes for a reset.
"""

import asyncio
import gzip
import logging
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal

from headrace.core.errors import (
    MissingExtraError,
    ModelNotFoundError,
    SequenceFullError,
    SequenceGoneError,
    SequenceLostError,
    TooManySequencesError,
)
from headrace.core.sequence import SequenceEnd
from headrace.core.statistics import Histogram, ModelStatistics, SequenceStatistics
from headrace.server.answers import Answers
from headrace.server.dataplane import Dataplane
from headrace.server.errors import INTERNAL_ERROR, NOT_FOUND
from headrace.server.http import Headers, Receive, Scope, Send

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
Kind = Literal["counter", "gauge", "histogram", "info"]
_MODEL: Final = ("model", "version")


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name as it is exposed, what it is, its labels, and what it says."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    says: str


_Value = float | Histogram
_Read = Callable[[ModelStatistics], Iterable[tuple[tuple[str, ...], _Value]]]
"""Values of a model version, each with the labels that come after its name and version."""


def _one(read: Callable[[ModelStatistics], _Value]) -> _Read:
    return lambda s: [((), read(s))]


def _requests(s: ModelStatistics) -> list[tuple[tuple[str, ...], _Value]]:
    return [
        (("success",), s.success.count),
        (("failed",), s.fail.count),
        (("cancelled",), s.cancelled),
        (("expired",), s.expired),
        (("refused",), s.refused),
    ]


def _rows(s: ModelStatistics) -> list[tuple[tuple[str, ...], _Value]]:
    return [(("success",), s.rows), (("failed",), s.failed_rows + s.error_rows)]


def _closed(s: ModelStatistics) -> list[tuple[tuple[str, ...], _Value]]:
    return [((why,), count) for why, count in sorted(s.closed.items())]


def _compute(s: ModelStatistics) -> list[tuple[tuple[str, ...], _Value]]:
    return [
        (("input",), s.compute_input.ns / 1e9),
        (("infer",), s.compute_infer.ns / 1e9),
        (("output",), s.compute_output.ns / 1e9),
    ]


def _of_steps(read: Callable[[SequenceStatistics], Iterable[tuple[tuple[str, ...], _Value]]]) -> _Read:
    """Of models with a `step` alone."""
    return lambda s: [] if s.sequences is None else read(s.sequences)


def _ends(s: SequenceStatistics) -> list[tuple[tuple[str, ...], _Value]]:
    return [((why.value,), s.ends.get(why.value, 0)) for why in SequenceEnd]


def _refused(s: SequenceStatistics) -> list[tuple[tuple[str, ...], _Value]]:
    return [((kind,), s.refused.get(kind, 0)) for kind in REFUSALS]


def _of_model(name: str, kind: Kind, says: str, read: _Read, *labels: str) -> tuple[Family, _Read]:
    return Family(name, kind, (*_MODEL, *labels), says), read


_OF_MODELS: Final = (
    _of_model(
        "headrace_requests_total",
        "counter",
        "Requests that ended, streams apart, by how: success, failed, cancelled, expired (their deadline passed) or "
        "refused (the queue was full).",
        _requests,
        "outcome",
    ),
    _of_model(
        "headrace_rows_total",
        "counter",
        "Rows of requests that ended with success, and rows that failed, alone or with their request.",
        _rows,
        "outcome",
    ),
    _of_model("headrace_calls_total", "counter", "Calls of the model.", _one(lambda s: s.calls)),
    _of_model(
        "headrace_retries_total",
        "counter",
        "Calls that looked for the guilty rows of a failed batch.",
        _one(lambda s: s.retries),
    ),
    _of_model(
        "headrace_batch_rows",
        "histogram",
        "Rows in one call of the model.",
        _one(lambda s: s.batch_rows),
    ),
    _of_model(
        "headrace_batches_closed_total",
        "counter",
        "Batches by the reason for which they closed; calls of inline instances are no batches.",
        _closed,
        "reason",
    ),
    _of_model(
        "headrace_queue_seconds",
        "histogram",
        "From a request's arrival to the begin of its call.",
        _one(lambda s: s.queue_s),
    ),
    _of_model(
        "headrace_request_seconds",
        "histogram",
        "From a request's arrival in the engine to its answer, success or failure.",
        _one(lambda s: s.request_s),
    ),
    _of_model(
        "headrace_compute_seconds_total",
        "counter",
        "Time in calls: input makes the batch, infer is the model itself, output checks and splits what it returned.",
        _compute,
        "step",
    ),
    _of_model(
        "headrace_busy_seconds_total",
        "counter",
        "Time in which instances were calling the model, summed over them.",
        _one(lambda s: s.busy_s),
    ),
    _of_model("headrace_instances", "gauge", "Copies of the model.", _one(lambda s: s.instances)),
    _of_model(
        "headrace_instance_restarts_total",
        "counter",
        "Instances that died and were started again.",
        _one(lambda s: s.restarts),
    ),
    _of_model("headrace_queue_requests", "gauge", "Requests that wait.", _one(lambda s: s.waiting_requests)),
    _of_model("headrace_queue_rows", "gauge", "Rows that wait.", _one(lambda s: s.waiting_rows)),
    _of_model(
        "headrace_queue_oldest_seconds",
        "gauge",
        "How long the oldest request that waits has waited; 0 when none does.",
        _one(lambda s: s.oldest_waiting_s),
    ),
    _of_model(
        "headrace_in_flight_requests",
        "gauge",
        "Requests that wait or are in a call.",
        _one(lambda s: s.in_flight),
    ),
    _of_model("headrace_streams_total", "counter", "Streams that were begun.", _one(lambda s: s.streams)),
    _of_model("headrace_open_streams", "gauge", "Streams that are open.", _one(lambda s: s.open_streams)),
    _of_model(
        "headrace_stream_items_total",
        "counter",
        "Responses of streams, counted when their stream ends.",
        _one(lambda s: s.stream_items),
    ),
    _of_model(
        "headrace_live_sequences",
        "gauge",
        "Sequences that live, requests that are one by themselves among them; of models with a step, as all that follows on sequences.",
        _of_steps(lambda s: [((), s.live)]),
    ),
    _of_model(
        "headrace_sequences_ended_total",
        "counter",
        "Sequences that ended, by why: ended (by their client or model), restarted, cancelled, idle, timed_out, evicted, "
        "instance_lost or stopped.",
        _of_steps(_ends),
        "reason",
    ),
    _of_model(
        "headrace_sequences_refused_total",
        "counter",
        "Requests that no sequence took, by the error: sequence_gone, sequence_full, sequence_lost or too_many_sequences; "
        "they are in no other figure of the model.",
        _of_steps(_refused),
        "reason",
    ),
    _of_model(
        "headrace_steps_total",
        "counter",
        "Steps that were done; how many share a call is in headrace_batch_rows.",
        _of_steps(lambda s: [((), s.steps)]),
    ),
    _of_model(
        "headrace_step_interval_seconds",
        "histogram",
        "Of a request that goes on: from the end of one of its steps to the end of the next.",
        _of_steps(lambda s: [((), s.interval_s)]),
    ),
    _of_model(
        "headrace_uptime_seconds",
        "gauge",
        "Since the model was ready; the other figures count from then.",
        _one(lambda s: s.uptime_s),
    ),
)
_READY: Final = Family(
    "headrace_model_ready",
    "gauge",
    _MODEL,
    "1 when a version can be asked, 0 when it cannot: not loaded, an instance is gone, or the server is draining.",
)
_ANSWERS: Final = Family(
    "headrace_answers_total",
    "counter",
    ("door", "action", "status"),
    "Answers of the server by the status that was sent: HTTP's number (499: the caller had gone), or gRPC's code.",
)
_BROKEN: Final = Family(
    "headrace_broken_streams_total",
    "counter",
    ("door", "action", "status"),
    "Answers that failed after their begin, by the status that would have said so; they are in the answers as well.",
)
_BUILD: Final = Family("headrace_build_info", "info", ("version", "python"), "Always 1.")

FAMILIES: Final = (*(family for family, _ in _OF_MODELS), _READY, _ANSWERS, _BROKEN, _BUILD)
"""All metrics of headrace's own."""


def _metric(family: Family) -> CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily:
    kinds = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    return kinds[family.kind](family.name, family.says, labels=family.labels)


def _add(metric: Metric, labels: Sequence[str], value: _Value) -> None:
    if isinstance(metric, HistogramMetricFamily):
        assert isinstance(value, Histogram)
        bounds = [*map(_bound, value.bounds), "+Inf"]
        buckets = list(zip(bounds, map(float, accumulate(value.counts)), strict=True))
        metric.add_metric(labels, buckets, value.total)
    elif isinstance(metric, CounterMetricFamily | GaugeMetricFamily):
        assert not isinstance(value, Histogram)
        metric.add_metric(labels, value)


def _bound(bound: float) -> str:
    """As the formats want it: a float, also for whole numbers."""
    return str(float(bound))


class HeadraceCollector(Collector):
    """Makes metrics of what a dataplane and its doors have counted; safe from any thread, never asks a model."""

    def __init__(self, dataplane: Dataplane, answers: Sequence[Answers] = ()) -> None:
        self._dataplane = dataplane
        self._answers = answers

    def describe(self) -> Iterable[Metric]:
        """Names alone, so that a registry need not collect to know them."""
        return [_metric(family) for family in FAMILIES if family.kind != "info"]

    def collect(self) -> Iterator[Metric]:
        """One metric for each of `FAMILIES`."""
        statistics = self._dataplane.statistics()
        for family, read in _OF_MODELS:
            metric = _metric(family)
            for s in statistics:
                for labels, value in read(s):
                    _add(metric, (s.name, s.version, *labels), value)
            yield metric
        yield self._ready()
        yield _counted(_ANSWERS, [(a.door, a.sent()) for a in self._answers])
        yield _counted(_BROKEN, [(a.door, a.broken()) for a in self._answers])
        build = {"version": self._dataplane.version, "python": platform.python_version()}
        yield InfoMetricFamily(_BUILD.name.removesuffix("_info"), _BUILD.says, value=build)

    def _ready(self) -> Metric:
        metric = _metric(_READY)
        for entry in self._dataplane.index():
            try:
                ready = self._dataplane.model_ready(entry.name, entry.version)
            except ModelNotFoundError:
                continue  # its version was taken away since
            _add(metric, (entry.name, entry.version), float(ready))
        return metric


def _counted(family: Family, doors: Iterable[tuple[str, Mapping[tuple[str, int | str], int]]]) -> Metric:
    metric = _metric(family)
    for door, counts in doors:
        for (action, status), count in sorted(counts.items(), key=str):
            _add(metric, (door, action, str(status)), count)
    return metric


class Metrics(Collector):
    """Everything that is exposed: headrace's own metrics, the process's, and what models put into the default registry.

    A name that is there twice is told once, ours first. A collector of the default registry that fails costs what comes
    after it in that registry, and a line in the log, never the scrape.
    """

    def __init__(
        self, dataplane: Dataplane, answers: Sequence[Answers] = (), *, others: Collector = REGISTRY
    ) -> None:
        self._own = CollectorRegistry(auto_describe=False)
        self._own.register(HeadraceCollector(dataplane, answers))
        ProcessCollector(registry=self._own)
        self._others = others

    def collect(self) -> Iterator[Metric]:
        """Every metric once."""
        seen: set[str] = set()
        for metric in self._own.collect():
            seen.add(metric.name)
            yield metric
        try:
            for metric in self._others.collect():
                if metric.name not in seen:
                    seen.add(metric.name)
                    yield metric
        except Exception as error:  # noqa: BLE001 - a model's own collector: anything may be in it
            _log.error("metrics of the default registry could not be collected", exc_info=error)


class MetricsApp:
    """An ASGI application: ``GET /metrics``, in the text format or OpenMetrics by ``Accept``, gzipped by ``Accept-Encoding``.

    Scrapes are made one at a time, off the event loop, so that requests go on meanwhile.
    """

    def __init__(self, metrics: Collector) -> None:
        self._metrics = metrics
        self._scraping = asyncio.Lock()

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Serve one exchange; see the ASGI specification."""
        if scope["type"] != "http":
            return
        if scope["path"] != "/metrics" or scope["method"] not in ("GET", "HEAD"):
            await _respond(send, NOT_FOUND, b"metrics are at /metrics\n", _PLAIN)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        accept = headers.get(b"accept", b"").decode("latin-1")
        packed = b"gzip" in headers.get(b"accept-encoding", b"")
        try:
            async with self._scraping:
                body, extra = await asyncio.to_thread(self._scrape, accept, packed=packed)
        except Exception as error:  # noqa: BLE001 - values that no format has room for, say
            _log.error("metrics could not be made", exc_info=error)
            await _respond(send, INTERNAL_ERROR, b"metrics could not be made: see the server's log\n", _PLAIN)
            return
        await _respond(send, 200, body, extra)

    def _scrape(self, accept: str, *, packed: bool) -> tuple[bytes, Headers]:
        encode, content_type = choose_encoder(accept)
        body = encode(self._metrics)
        headers = [(b"content-type", content_type.encode())]
        if packed and len(body) >= GZIP_BYTES_MIN:
            return gzip.compress(body, 1), [*headers, (b"content-encoding", b"gzip")]
        return body, headers


_PLAIN: Final = [(b"content-type", b"text/plain; charset=utf-8")]


async def _respond(send: Send, status: int, body: bytes, headers: Headers) -> None:
    all_headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})
