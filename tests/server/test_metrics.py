"""Scrapes of real servers, compared with the requests that were sent."""

import asyncio
import gzip
import sys
import types

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

import headrace
from cases import for_each
from headrace.core import Model, SequenceLimits
from headrace.core.statistics import BATCH_ROWS_BOUNDS, QUEUE_S_BOUNDS
from headrace.engine.repository import ModelRepository
from headrace.jobs.access import Access, Scope
from headrace.server.application import Guard
from headrace.server.dataplane import Dataplane
from headrace.server.metrics import FAMILIES, Metrics, MetricsApp
from headrace.testing import EchoModel, HeldModel, PickyModel
from server.support import key_of
from server.support_observe import WAIT_S, definition, infer, samples, samples_of, serving, value

M = {"model": "m", "version": "1"}


class Counting(Model):
    """A model that yields as many items as the first value says, and fails if it is not an integer."""

    async def predict_stream(self, requests):
        async for request in requests:
            wanted = float(request.inputs[0].data[0, 0])
            for i in range(int(wanted)):
                yield [float(i)]
            if wanted != int(wanted):
                raise ValueError("half an item")


@pytest.mark.parametrize("isolation", ["inline", "thread"])
def test_concurrent_load_is_counted_exactly(isolation):
    """Rows, requests, outcomes, histograms and responses match the requests."""
    sent = [("/v2/models/m/infer", infer(*[1.0] * (1 + i % 5))) for i in range(200)]
    sent += [("/v2/models/m/infer", infer(7.0, 1.0))] * 20  # the model fails on 7
    sent += [("/v2/models/m/infer", b"{")] * 10
    sent += [("/v2/models/nobody/infer", infer(1.0))] * 5
    rows = sum(1 + i % 5 for i in range(200))
    with serving(definition(PickyModel([7.0]), isolation=isolation)) as served:
        statuses = sorted(a.status for a in served.request_all(sent))
        # An instance counts its batch a moment after the response.
        found = served.scrape_until(lambda f: value(f, "headrace_in_flight_requests", **M) == 0)
    assert statuses == [200] * 200 + [400] * 10 + [404] * 5 + [500] * 20
    assert value(found, "headrace_requests_total", outcome="success", **M) == 200
    assert value(found, "headrace_requests_total", outcome="failed", **M) == 20
    assert value(found, "headrace_rows_total", outcome="success", **M) == rows
    assert value(found, "headrace_rows_total", outcome="failed", **M) == 40
    for outcome in ("cancelled", "expired", "refused"):
        assert value(found, "headrace_requests_total", outcome=outcome, **M) == 0
    for name in ("headrace_queue_seconds", "headrace_request_seconds"):
        assert value(found, f"{name}_count", **M) == 220
        assert value(found, f"{name}_bucket", le="+Inf", **M) == 220
    assert samples_of(found, "headrace_answers_total") == {
        ("infer", "rest", "200"): 200,
        ("infer", "rest", "400"): 10,
        ("infer", "rest", "404"): 5,
        ("infer", "rest", "500"): 20,
    }
    calls = value(found, "headrace_calls_total", **M)
    assert value(found, "headrace_batch_rows_count", **M) <= calls
    if isolation == "inline":
        assert calls == 220
        assert value(found, "headrace_batch_rows_sum", **M) == rows
    else:
        closed = samples_of(found, "headrace_batches_closed_total")
        assert 0 < sum(closed.values()) <= 220


@for_each(("host", "status"), [(b"localhost:8082", 200), (b"10.0.0.1", 200), (b"evil.example:8082", 403)])
def test_metrics_of_a_local_server_check_the_host(host, status):
    """Before, a page with a name of its own that resolves to this machine could read the metrics."""
    app, sent = MetricsApp(CollectorRegistry(), Guard(bound_to="127.0.0.1")), []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": "/metrics", "method": "GET", "headers": [(b"host", host)]}
    asyncio.run(app(scope, None, send))
    assert sent[0]["status"] == status
    assert (b"--allow-host" in sent[1]["body"]) is (status == 403)


def test_histogram_buckets_are_cumulative():
    with serving(definition(EchoModel, queue_rows_max=8192)) as served:
        for rows in (1, 2, 3, 4096, 4097):
            assert served.request("/v2/models/m/infer", infer(*[1.0] * rows)).status == 200
        found = served.scrape()
    buckets = {
        float(dict(labels)["le"]): number
        for (name, labels), number in found.items()
        if name == "headrace_batch_rows_bucket"
    }
    assert sorted(buckets) == [*map(float, BATCH_ROWS_BOUNDS), float("inf")]
    assert (buckets[1], buckets[2], buckets[4], buckets[8]) == (2, 3, 4, 4)
    # The last two take several calls, because the model takes 1024 rows; one row remains for a last
    # call.
    assert (
        buckets[float("inf")]
        == value(found, "headrace_batch_rows_count", **M)
        == value(found, "headrace_calls_total", **M)
    )
    assert value(found, "headrace_batch_rows_sum", **M) == 1 + 2 + 3 + 4096 + 4097
    bounds = {
        float(dict(labels)["le"]) for (name, labels) in found if name == "headrace_queue_seconds_bucket"
    }
    assert bounds == {*QUEUE_S_BOUNDS, float("inf")}


def test_queue_gauges_show_waiting_requests():
    model = HeldModel()
    with serving(definition(model, isolation="thread", queue_rows_max=3, max_batch_rows=1)) as served:
        futures = [begun(served, 1)]
        model.wait_for_calls(1)
        futures += [begun(served, 1), begun(served, 2)]
        served.run(nothing())  # the earlier requests are in the queue by now
        found = served.scrape()
        refused = served.request("/v2/models/m/infer", infer(1.0))
        model.release(4)
        for future in futures:
            future.result(WAIT_S)
        after = served.scrape()
    assert value(found, "headrace_queue_requests", **M) == 2
    assert value(found, "headrace_queue_rows", **M) == 3
    assert value(found, "headrace_in_flight_requests", **M) == 3
    assert value(found, "headrace_queue_oldest_seconds", **M) > 0
    assert refused.status == 429
    assert value(after, "headrace_requests_total", outcome="refused", **M) == 1
    assert value(after, "headrace_queue_rows", **M) == 0
    assert value(after, "headrace_queue_oldest_seconds", **M) == 0
    assert value(after, "headrace_busy_seconds_total", **M) > 0


def begun(served, rows: int):
    """Return a request that has passed its listener."""
    return asyncio.run_coroutine_threadsafe(served.dataplane.infer("m", "1", request(rows)), served.loop)


async def nothing() -> None:
    await asyncio.sleep(0)


def request(rows: int):
    import numpy as np

    from headrace.core import InferRequest, Tensor

    return InferRequest((Tensor("x", np.ones((rows, 1), np.float32)),))


def test_expired_and_cancelled_are_outcomes():
    model = HeldModel()
    with serving(definition(model, isolation="thread", max_batch_rows=1)) as served:
        running = begun(served, 1)
        model.wait_for_calls(1)
        late = served.request("/v2/models/m/infer", infer(1.0, timeout=1000))
        waiting = begun(served, 1)
        served.run(nothing())
        waiting.cancel()
        served.run(nothing())
        served.run(nothing())
        model.release(1)
        running.result(WAIT_S)
        found = served.scrape()
    assert late.status == 504
    assert value(found, "headrace_requests_total", outcome="expired", **M) == 1
    assert value(found, "headrace_requests_total", outcome="cancelled", **M) == 1
    assert value(found, "headrace_requests_total", outcome="success", **M) == 1


def test_broken_streams_are_counted():
    with serving(definition(Counting)) as served:
        path = "/v2/models/m/infer_stream"
        for many in (3.0, 4.0, 2.5):
            assert served.request(path, infer(many)).status == 200
        assert served.request(path, infer(0.5)).status == 500  # before its first item
        found = served.scrape()
    assert value(found, "headrace_streams_total", **M) == 4
    assert value(found, "headrace_stream_items_total", **M) == 9
    assert value(found, "headrace_open_streams", **M) == 0
    assert samples_of(found, "headrace_answers_total") == {
        ("infer_stream", "rest", "200"): 3,
        ("infer_stream", "rest", "500"): 1,
    }
    assert samples_of(found, "headrace_broken_streams_total") == {("infer_stream", "rest", "500"): 1}


def test_every_response_is_counted():
    access = Access(dict([key_of("web", "0123456789abcdef", Scope.INFER)]))
    key = {"Authorization": "Bearer 0123456789abcdef"}
    with serving(definition(EchoModel), access=access) as served:
        assert served.request("/v2/health/live").status == 200
        assert served.request("/v2/models/m", headers=key).status == 200
        assert served.request("/v2/models/m", headers=key, method="HEAD").status == 200
        assert served.request("/v2/models/m").status == 401
        assert served.request("/v2/models/m/infer", headers=key).status == 405
        assert served.request("/wp-admin").status == served.request("/other/made/up").status == 404
        assert served.request("/v2/repository/index", {}, headers=key).status == 403
        found = served.scrape()
    assert samples_of(found, "headrace_answers_total") == {
        ("live", "rest", "200"): 1,
        ("model_metadata", "rest", "200"): 2,
        ("model_metadata", "rest", "401"): 1,
        ("unknown", "rest", "405"): 1,
        ("unknown", "rest", "404"): 2,
        ("index", "rest", "403"): 1,
    }


def test_reloaded_model_counts_from_zero():
    with serving(definition(EchoModel), definition(EchoModel, version="2")) as served:
        for version in ("1", "2"):
            assert served.request(f"/v2/models/m/versions/{version}/infer", infer(1.0)).status == 200
        before = served.scrape()
        served.repository.load("m")
        loaded = served.scrape()
        assert served.request("/v2/models/m/infer", infer(1.0)).status == 200
        after = served.scrape()
        served.repository.unload("m")
        missing = served.scrape()
    name = "headrace_requests_total"
    for version in ("1", "2"):
        labels = {"model": "m", "version": version, "outcome": "success"}
        assert value(before, name, **labels) == 1
        assert value(loaded, name, **labels) == 0
    assert value(after, name, model="m", version="2", outcome="success") == 1
    assert samples_of(after, "headrace_model_ready") == {("m", "1"): 1, ("m", "2"): 1}
    assert samples_of(missing, "headrace_model_ready") == {("m", "1"): 0, ("m", "2"): 0}
    assert samples_of(missing, name) == {}
    assert samples_of(missing, "headrace_answers_total") == {("infer", "rest", "200"): 3}


def test_model_defined_metrics_are_exposed():
    made = types.ModuleType("made_by_a_model")
    made.seen = Counter("my_words", "Words that were seen.", ["language"])
    sys.modules[made.__name__] = made

    class Words(Model):
        def predict(self, x):
            import made_by_a_model

            made_by_a_model.seen.labels("en").inc(len(x))
            return x

    try:
        with serving(definition(Words, "i"), definition(Words, "t", isolation="thread")) as served:
            for model in ("i", "t"):
                assert served.request(f"/v2/models/{model}/infer", infer(1.0, 2.0)).status == 200
            found = served.scrape()
    finally:
        del sys.modules[made.__name__]
        from prometheus_client import REGISTRY

        REGISTRY.unregister(made.seen)
    assert value(found, "my_words_total", language="en") == 4


def test_process_and_build_metrics_are_exposed():
    with serving(definition(EchoModel)) as served:
        found = served.scrape()
    assert found[("process_resident_memory_bytes", frozenset())] > 1e6
    assert found[("process_open_fds", frozenset())] > 3
    ((labels, number),) = (
        (dict(labels), number) for (name, labels), number in found.items() if name == "headrace_build_info"
    )
    assert number == 1
    assert labels["version"] == headrace.__version__


@pytest.fixture
def echo():
    with serving(definition(EchoModel)) as served:
        yield served


@for_each(
    ("accept", "content_type", "parse"),
    [
        ("", "text/plain", plain),
        ("text/plain;version=0.0.4", "text/plain", plain),
        (
            "application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
            "application/openmetrics-text",
            openmetrics,
        ),
    ],
)
def test_accept_header_selects_the_format(echo, accept, content_type, parse):
    assert echo.request("/v2/models/m/infer", infer(1.0)).status == 200
    response = echo.request("/metrics", headers={"Accept": accept}, port=echo.metrics)
    packed = echo.request(
        "/metrics", headers={"Accept": accept, "Accept-Encoding": "gzip"}, port=echo.metrics
    )
    assert response.headers["content-type"].startswith(content_type)
    families = {family.name: family for family in parse(response.body.decode())}
    assert packed.headers["content-encoding"] == "gzip"
    again = {family.name for family in parse(gzip.decompress(packed.body).decode())}
    assert again == set(families)
    for family in FAMILIES:
        name = family.name.removesuffix("_total").removesuffix("_info" if family.kind == "info" else "\0")
        received = families[name if name in families else family.name]
        assert received.documentation == family.description


class Steps(Model):
    """A model whose rows say how often they are rescheduled."""

    sequences = SequenceLimits(live_max=2)

    def step(self, states, x):
        for state, times in zip(states, x.ravel(), strict=True):
            state["left"] = left = state["left"] - 1 if state.again else int(times)
            if left:
                state.reschedule()
        return x


def asking(served, value, **parameters):
    body = {**infer(value), "parameters": parameters}
    return served.request("/v2/models/s/infer_stream", body)


def test_sequences_are_counted():
    with serving(definition(Steps, "s", isolation="thread"), definition(EchoModel, "e")) as served:
        assert asking(served, 3.0, sequence_id="a", sequence_start=True).status == 200
        assert asking(served, 0.0, sequence_id="b", sequence_start=True).status == 200
        assert asking(served, 0.0, sequence_id="c", sequence_start=True).status == 503
        assert asking(served, 0.0, sequence_id="d").status == 410
        assert asking(served, 0.0, sequence_id="d").status == 410
        assert asking(served, 0.0, sequence_id="b", sequence_end=True).status == 200
        found = served.scrape()

    def of(name, **labels):
        return found[name, frozenset({"model": "s", "version": "1", **labels}.items())]

    assert of("headrace_live_sequences") == 1
    assert of("headrace_sequences_ended_total", reason="ended") == 1
    assert of("headrace_sequences_ended_total", reason="idle") == 0
    assert of("headrace_sequences_refused_total", reason="sequence_gone") == 2
    assert of("headrace_sequences_refused_total", reason="too_many_sequences") == 1
    assert of("headrace_sequences_refused_total", reason="sequence_full") == 0
    # The first request has four steps, each other request has one.
    assert of("headrace_steps_total") == 6
    assert of("headrace_batch_rows_count") == 6
    assert of("headrace_step_interval_seconds_count") == 3
    assert of("headrace_step_interval_seconds_sum") > 0
    assert not [name for name, labels in found if "sequence" in name and ("model", "e") in labels]


def test_labels_match_the_declaration():
    declared = {f.name: set(f.labels) for f in FAMILIES}
    every = (definition(Counting), definition(EchoModel, "e", isolation="thread"))
    with serving(*every, definition(Steps, "s", isolation="thread")) as served:
        served.request("/v2/models/m/infer_stream", infer(1.5))
        served.request("/v2/models/e/infer", infer(1.5))
        asking(served, 0.0)
        found = served.scrape()
    seen: dict[str, set[str]] = {}
    for name, labels in found:
        if name.startswith("headrace_"):
            base = name if name in declared else name.rsplit("_", 1)[0]
            seen.setdefault(base, set()).update({label for label, _ in labels} - {"le"})
    assert seen == declared


def test_other_paths_and_methods_respond_404():
    with serving(definition(EchoModel)) as served:
        for path, method in (("/", "GET"), ("/metrics/", "GET"), ("/metrics", "POST"), ("/v2", "GET")):
            assert served.request(path, method=method, port=served.metrics).status == 404, (path, method)


class _Broken:
    def collect(self):
        yield from ()
        raise RuntimeError("secret of a model")


def test_failing_model_collector_keeps_other_metrics(caplog):
    metrics = Metrics(Dataplane(ModelRepository([])), others=_Broken())
    assert "headrace_build" in {metric.name for metric in metrics.collect()}
    assert "default registry" in caplog.text


def test_duplicate_metric_name_is_exposed_once():
    others = CollectorRegistry()
    Counter("headrace_requests", "Not ours.", registry=others).inc(5)
    Counter("mine", "Theirs.", registry=others).inc(2)
    received = list(Metrics(Dataplane(ModelRepository([])), others=others).collect())
    names = [metric.name for metric in received]
    assert len(names) == len(set(names))
    assert "mine" in names
    assert not any(m.documentation == "Not ours." for m in received)


def test_failed_scrape_responds_500_without_traceback(caplog):
    sent = []

    async def send(message):
        sent.append(message)

    class Impossible:
        def collect(self):
            raise RuntimeError("secret of a model")

    scope = {"type": "http", "path": "/metrics", "method": "GET", "headers": []}
    asyncio.run(MetricsApp(Impossible())(scope, None, send))
    assert sent[0]["status"] == 500
    assert b"secret" not in sent[1]["body"]
    assert "secret" in caplog.text


def test_sample_helper_detects_duplicates():
    with pytest.raises(AssertionError, match="twice"):
        samples("# TYPE a counter\na_total 1\na_total 2\n")
