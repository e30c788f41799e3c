"""Streams and runs built from a caller's arguments: predictors, outputs, stop and resume."""

import asyncio
import functools
import os
import threading

import numpy as np
import pytest

import headrace
from cases import for_each
from headrace.app.models import PredictorOptions, open_predictor
from headrace.app.runs import OpenedRun, execute, open_run, open_watch
from headrace.core.errors import ConfigError, LimitError, ModelLoadError, NotFoundError, OutputExistsError
from headrace.core.model import Model
from headrace.core.sequence import SequenceLimits
from headrace.core.tensor import InferRequest, Tensor, TensorSpec
from headrace.engine.sequences import sequence_rows
from headrace.reports.report import Report
from headrace.runs.output_settings import OutputSettings
from headrace.runs.run import Run
from headrace.runs.settings import FlowSettings, MappingOptions, StreamSettings
from headrace.storage.resolve import Stores
from runs.stream_support import ScriptedPredictor


class Double(Model):
    inputs = (TensorSpec("x", "FP32", (-1, 2)),)

    def predict(self, x):
        return x[:, 0] * 2


class Half(Model):
    inputs = Double.inputs

    def predict(self, x):
        return x[:, 0] / 2


@pytest.fixture
def stores() -> Stores:
    made = Stores()
    made.for_uri("memory://b/").put("memory://b/in/a.csv", b"1,0\n2,0\nx,0\n4,0\n")
    return made


def predictions(stores: Stores, output: str = "memory://b/out/") -> bytes:
    store = stores.for_uri(output)
    return b"".join(store.get(i.uri) for i in store.list(f"{output}part-") if i.uri.endswith(".csv"))


def engine_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("headrace-Double")]


# Predictors


@for_each(("model", "endpoint"), [(None, None), (Double, "http://h")])
def test_exactly_one_of_model_and_endpoint_is_required(model, endpoint):
    with pytest.raises(ConfigError, match="give either a model"):
        open_predictor(model, endpoint, PredictorOptions())


def test_model_is_a_class_factory_file_or_predictor(tmp_path):
    file = tmp_path / "m.py"
    file.write_text("from headrace import Model\nclass M(Model):\n    def predict(self, x): return x\n")
    ready = ScriptedPredictor()
    opened = [
        open_predictor(model, None, PredictorOptions(instances=2))
        for model in (Double, functools.partial(Double), str(file), ready)
    ]
    assert opened[3].predictor is ready
    assert [type(o.predictor).__name__ for o in opened[:3]] == ["Engine"] * 3
    assert opened[0].identity.startswith("Double sha256:")
    assert opened[2].identity.startswith("m sha256:")


def test_identity_changes_with_the_code_of_a_model(tmp_path):
    """A resumed run must not mix the predictions of two models."""
    file = tmp_path / "m.py"
    identities = set()
    for number in range(2):
        file.write_text(
            f"from headrace import Model\nclass M(Model):\n    def predict(self, x): return x + {number}\n"
        )
        identities.add(open_predictor(str(file), None, PredictorOptions()).identity)
    identities |= {open_predictor(m, None, PredictorOptions()).identity for m in (Double, Half)}
    assert len(identities) == 4


def test_identity_of_an_endpoint_is_its_url():
    pytest.importorskip("aiohttp")
    opened = open_predictor(None, "http://127.0.0.1:9/v2/models/m", PredictorOptions(protocol="oip"))
    assert "127.0.0.1:9" in opened.identity


# Streams


def test_stream_yields_every_outcome(stores):
    with headrace.stream("memory://b/in/", model=Double, stores=stores) as outcomes:
        found = [float(o.outputs["output"]) if o.ok else None for o in outcomes]
    assert found == [2, 4, None, 8]
    assert engine_threads() == []


def test_stream_applies_settings(stores):
    settings = StreamSettings(mapping=MappingOptions(columns=(1, 0)), flow=FlowSettings(batch_rows_max=1))
    batches = list(
        headrace.stream("memory://b/in/", model=Double, settings=settings, stores=stores).batches()
    )
    assert [b.entries for b in batches] == [1, 1, 1, 1]
    assert batches[0].outputs["output"].tolist() == [0.0]


def test_stream_of_a_missing_object_raises_while_iterating(stores):
    stream = headrace.stream("memory://b/gone/x.csv", model=Double, stores=stores)
    with pytest.raises(NotFoundError):
        list(stream)
    assert engine_threads() == []


# Runs


def test_run_sync_writes_and_reports(stores):
    report = headrace.run_sync("memory://b/in/", model=Double, output="memory://b/out", stores=stores)
    assert (report.records_in, report.rows_out, report.rows_failed, report.exit_code) == (4, 3, 1, 3)
    assert predictions(stores) == b"2.0\n4.0\n8.0\n"
    assert engine_threads() == []
    with pytest.raises(OutputExistsError):
        headrace.run_sync("memory://b/in/", model=Double, output="memory://b/out", stores=stores)
    again = headrace.run_sync(
        "memory://b/in/", model=Double, output="memory://b/out", stores=stores, resume=True
    )
    assert again == report


def test_run_writes_and_reports(stores):
    report = asyncio.run(headrace.run("memory://b/in/", model=Double, output="memory://b/out", stores=stores))
    assert report.records_in == 4
    assert predictions(stores) == b"2.0\n4.0\n8.0\n"


def test_cancelled_run_drains_and_is_resumable(stores):
    stores.for_uri("memory://b/").put("memory://b/in/a.csv", b"".join(b"%d,0\n" % i for i in range(50)))
    entered, release = threading.Event(), threading.Event()

    class Held(Double):
        max_batch_rows = 5

        def predict(self, x):
            if 10 in x[:, 0]:
                entered.set()
                assert release.wait(10)
            return super().predict(x)

    async def cancelled() -> None:
        task = asyncio.ensure_future(
            headrace.run("memory://b/in/", model=Held, output="memory://b/out", stores=stores)
        )
        await asyncio.to_thread(entered.wait, 10)
        task.cancel()
        for _ in range(3):  # The cancellation reaches the run within three loop cycles.
            await asyncio.sleep(0)
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    report = headrace.run_sync(
        "memory://b/in/", model=Held, output="memory://b/out", stores=stores, resume=True
    )
    assert (report.records_in, report.resumed) == (50, True)
    assert 0 < report.model_calls < 10
    assert predictions(stores) == b"".join(b"%.1f\n" % (2.0 * i) for i in range(50))


def test_model_that_does_not_load_leaves_no_output(stores):
    class Broken(Double):
        def load(self):
            raise OSError("no weights")

    with pytest.raises(ModelLoadError, match="no weights"):
        headrace.run_sync("memory://b/in/", model=Broken, output="memory://b/out", stores=stores)
    assert not list(stores.for_uri("memory://b/").list("memory://b/out"))


def test_opened_run_starts_and_always_stops_its_predictor(stores):
    opened = open_run("memory://b/in/", model=Double, output="memory://b/out", stores=stores)
    assert isinstance(opened, OpenedRun)
    assert engine_threads() == []
    with opened as run:
        assert run is opened.run
        assert len(engine_threads()) == 1
    assert engine_threads() == []
    with pytest.raises(ZeroDivisionError):
        _raise_within(opened)
    assert engine_threads() == []


def _raise_within(opened: OpenedRun) -> None:
    with opened:
        raise ZeroDivisionError


def test_execute_enters_and_leaves_the_context(stores):
    seen = []

    class Around:
        def __enter__(self):
            seen.append("in")

        def __exit__(self, *_):
            seen.append("out")

    execute(open_run("memory://b/in/", model=Double, output="memory://b/out", stores=stores), Around())
    assert seen == ["in", "out"]


def test_watch_polls_the_source_of_the_run(stores):
    opened = open_run("memory://b/in/", model=Double, output="memory://b/out", stores=stores)
    watch = open_watch(opened, poll_s=1.0)
    with opened:
        assert watch.tick().records_in == 4
        assert watch.tick() is None


def test_model_without_source_code_has_an_identity():
    made = type("Made", (Double,), {})
    assert open_predictor(made, None, PredictorOptions()).identity.startswith("Made sha256:")


def test_old_temporary_files_are_removed(tmp_path):
    left = [tmp_path / "out" / name for name in (".headrace-1-x.tmp", "_headrace/.headrace-2-x.tmp")]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
        os.utime(path, (0, 0))
    with open_run(f"{tmp_path}/in/", model=Double, output=f"{tmp_path}/out"):
        assert not [path for path in left if path.exists()]


def test_model_options_reach_the_model(tmp_path):
    (tmp_path / "scaled.py").write_text(
        "import headrace\n\n\nclass Scaled(headrace.Model):\n"
        "    def __init__(self, factor):\n        self.factor = factor\n\n"
        "    def predict(self, x):\n        return x * self.factor\n"
    )
    options = PredictorOptions(model_options={"factor": 3})
    opened = open_predictor(str(tmp_path / "scaled.py"), None, options)
    opened.predictor.start()
    try:
        request = InferRequest((Tensor("x", np.ones(2, np.float32)),))
        assert opened.predictor.submit(request).result(30)["output"].tolist() == [3, 3]
    finally:
        opened.predictor.stop()
    for model, endpoint in ((Double, None), (None, "http://127.0.0.1:9/v2/models/m")):
        with pytest.raises(ConfigError, match="model_options need a model that is named"):
            open_predictor(model, endpoint, options)


# Sequences


def sum_model(calls: list[list[tuple[str, bool, bool]]], ended: list[tuple[str, str]]) -> type[Model]:
    class Sum(Model):
        max_batch_rows = 8
        inputs = (TensorSpec("x", "FP32", (-1, 1)),)
        sequences = SequenceLimits(live_max=3, idle_ms=0.001, requests_max=1, evict_idle_ms=0.001)

        def warm_up(self):
            """Make no call before the first record."""

        def step(self, states, x):
            calls.append([(state.id, state.start, state.end) for state in states])
            total = states.stack("total", (1,)) + x
            states.keep("total", total)
            return total[:, 0]

        def sequence_ended(self, state, why):
            ended.append((state.id, str(why)))

    return Sum


def sequences_of(
    stores: Stores, data: bytes, *, rows: int | None = None, live_max: int | None = None, **mapping
):
    """Return the outcomes of a real engine, the calls of its model, and the ends of its sequences."""
    stores.for_uri("memory://b/").put("memory://b/steps.csv", data)
    calls: list[list[tuple[str, bool, bool]]] = []
    ended: list[tuple[str, str]] = []
    settings = StreamSettings(
        mapping=MappingOptions(**mapping), flow=FlowSettings(batch_rows_max=rows, sequences_live_max=live_max)
    )
    model = sum_model(calls, ended)
    with headrace.stream("memory://b/steps.csv", model=model, settings=settings, stores=stores) as outcomes:
        found = [float(o.outputs["output"]) if o.ok else o.why for o in outcomes]
    return found, calls, ended


def test_steps_of_different_sequences_share_a_call(stores):
    data = b"a,1\nb,2\nc,3\na,4\nb,5\na,6\n"
    found, calls, ended = sequences_of(stores, data, sequence=0)
    assert found == [1, 2, 3, 5, 7, 11]
    assert [[id for id, _, _ in call] for call in calls] == [["a", "b", "c"], ["a", "b"], ["a"]]
    assert sorted(ended) == [("a", "stopped"), ("b", "stopped"), ("c", "stopped")]


def test_time_and_count_limits_of_the_model_end_no_sequence_of_a_run(stores):
    # The model's own limits are one microsecond of life and one waiting request.
    found, _, ended = sequences_of(stores, b"a,1\nb,2\nc,3\na,4\nb,5\na,6\n", rows=1, sequence=0)
    assert found == [1, 2, 3, 5, 7, 11]
    assert {why for _, why in ended} == {"stopped"}


def test_sequence_ends_and_restarts_within_a_batch(stores):
    data = b"a,0,1\na,1,2\na,0,3\nb,1,4\na,1,5\nb,0,6\na,0,7\n"
    for rows in (None, 1, 2, 3):
        found, calls, ended = sequences_of(stores, data, rows=rows, sequence=0, sequence_end=1)
        assert found == [1, 3, 3, 4, 8, 6, 7]
        assert sum(len(call) for call in calls) == 7
        assert sorted(ended) == [
            ("a", "ended"), ("a", "ended"), ("a", "stopped"), ("b", "ended"), ("b", "stopped"),
        ]  # fmt: skip


def test_live_sequence_limit_ends_a_run_and_is_configurable(stores):
    data = b"a,1\nb,2\nc,3\nd,4\n"
    with pytest.raises(LimitError, match="the limit of 3 unfinished"):
        sequences_of(stores, data, sequence=0)
    assert sequences_of(stores, data, sequence=0, live_max=4)[0] == [1, 2, 3, 4]


def test_object_is_a_sequence_that_ends_with_it(stores):
    found, _, ended = sequences_of(stores, b"1\n2\nx\n3\n", rows=2, sequence="@object")
    assert found[:2] + found[3:] == [1, 3, 6]
    assert ended == [("memory://b/steps.csv", "ended")]


def test_without_a_sequence_every_record_is_a_sequence_at_any_batch_size(stores):
    for rows in (None, 1, 3):
        found, calls, _ = sequences_of(stores, b"1\n2\n3\n4\n", rows=rows)
        assert found == [1, 2, 3, 4]
        assert {row for call in calls for row in call} == {("", True, False)}


def batch_of(stores, rows):
    data = b"".join(b"%d\n" % (i % 100) for i in range(rows))
    found, _, _ = sequences_of(stores, data, rows=rows)
    assert found == [i % 100 for i in range(rows)]


def test_batch_has_more_rows_than_a_served_request_may(stores, monkeypatch):
    monkeypatch.setattr(sequence_rows, "STEP_OUTPUTS_MAX", 100)
    batch_of(stores, 150)


@pytest.mark.slow
def test_batch_has_more_rows_than_the_default_limit_of_served_requests(stores):
    batch_of(stores, sequence_rows.STEP_OUTPUTS_MAX + 500)


def test_sequences_at_an_endpoint_are_refused(stores):
    settings = StreamSettings(mapping=MappingOptions(sequence="user"))
    with pytest.raises(ConfigError, match=r"--sequence user needs the model itself .*repeat its steps"):
        headrace.stream("memory://b/in/", endpoint="http://h/v2/models/m", settings=settings, stores=stores)
    with pytest.raises(ConfigError, match="needs the model itself"):
        open_run(
            "memory://b/in/", endpoint="http://h/v2/models/m", output="memory://b/out", settings=settings
        )


def test_sequences_of_a_model_without_step_are_refused(stores):
    settings = StreamSettings(mapping=MappingOptions(sequence=0, columns=(0, 1)))
    with pytest.raises(ConfigError, match="model Double declares no step"):
        headrace.run_sync(
            "memory://b/in/", model=Double, output="memory://b/out", settings=settings, stores=stores
        )
    assert not list(stores.for_uri("memory://b/out/").list("memory://b/out/"))


@pytest.mark.parametrize(
    ("mapping", "stops"),
    [
        ({"sequence": 0, "sequence_end": 1}, (5, 17, 30, 45)),
        ({"sequence": "@object", "columns": (2,)}, (9, 90, 150, 190)),
    ],
)
def test_resumed_run_forms_the_same_calls(stores, mapping, stops):
    """This model's predictions and states depend on the sequences that share a call."""
    stop_at: list[tuple[Run, int]] = []

    class CallSizes(Model):
        max_batch_rows = 6
        inputs = (TensorSpec("x", "INT64", (-1, 1)),)

        def load(self):
            self.calls = 0

        def warm_up(self):
            """Make no call before the first record."""

        def step(self, states, x):
            self.calls += 1
            for run, at in stop_at:
                if self.calls == at:
                    run.drain()
            total = states.stack("crowd", (), np.int64) * 3 + len(states)
            states.keep("crowd", total % 10_000)
            return total

    rng = np.random.default_rng(7)
    for name in "abc":
        lines = [f"u{rng.integers(9)},{int(rng.random() < 0.15)},{rng.integers(99)}" for _ in range(70)]
        stores.for_uri("memory://b/").put(f"memory://b/many/{name}.csv", "\n".join(lines).encode())
    settings = StreamSettings(
        mapping=MappingOptions(**mapping),
        flow=FlowSettings(batch_rows_max=16),
        output=OutputSettings(part_bytes_max=50, checkpoint_s=0),
    )

    def run_until_call(output: str, at: int | None) -> Report:
        opened = open_run(
            "memory://b/many/",
            model=CallSizes,
            output=output,
            settings=settings,
            resume=True,
            stores=stores,
        )
        with opened as run:
            stop_at[:] = [] if at is None else [(run, at)]
            return run.execute()

    run_until_call("memory://b/whole/", None)
    expected = predictions(stores, "memory://b/whole/")
    replayed = 0
    for at in stops:
        output = f"memory://b/stopped-{at}/"
        statuses = [run_until_call(output, at).status, run_until_call(output, at).status]
        assert statuses[0] == "drained"
        report = run_until_call(output, None)
        replayed += report.records_replayed
        assert report.status == "complete"
        assert predictions(stores, output) == expected
    assert replayed > 0
