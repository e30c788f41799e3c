"""V2 inference requests as records: one request in, one response or one failure out, in order."""

import json
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import levels
from cases import for_each
from headrace.core.block import Block, FailureKind, Position, Prediction
from headrace.core.errors import (
    BrokenModelError,
    ConfigError,
    EndpointUnavailableError,
    ModelInputError,
    PredictError,
    RefusedRowsError,
    ResumeRefusedError,
)
from headrace.core.model import Model, RowError
from headrace.core.tensor import (
    InferRequest,
    InferResponse,
    ModelMetadata,
    RowFailure,
    Tensor,
    TensorSpec,
    text_array,
)
from headrace.reports.observation import RunObservation
from headrace.runs.flow import open_flow
from headrace.runs.objects import plan_objects, select_infos
from headrace.runs.requests import REQUEST, RequestDecoder, RequestPredictor
from headrace.runs.responses import RESPONSE
from headrace.runs.retry import FailedRecordsRetry
from headrace.runs.run import Run
from headrace.runs.sample import schema_of, try_records
from headrace.runs.schema import Schema
from headrace.runs.settings import StreamSettings, SubsetSettings, TransformSettings
from headrace.storage.resolve import Stores
from runs.stream_support import ScriptedPredictor
from runs.support import (
    IN,
    OUT,
    FailingPredictor,
    InjectedError,
    allow_small_tasks,
    engine,
    failed_lines,
    make_settings,
    outputs,
    put,
    transform,
)

V2 = {"format": "v2"}


class Labels(Model):
    """A model of two numbers: their sum, and a text. Refuses rows with a negative first number."""

    inputs = (TensorSpec("x", "FP32", (-1, 2)),)
    outputs = (TensorSpec("y", "FP32", (-1,)), TensorSpec("label", "BYTES", (-1,)))
    max_batch_rows = 4

    def __init__(self) -> None:
        self.calls: list[int] = []

    def predict(self, x):
        self.calls.append(len(x))
        bad = dict.fromkeys(np.flatnonzero(x[:, 0] < 0).tolist(), "negative")
        if bad:
            raise RowError(bad)
        return {"y": x.sum(axis=1), "label": text_array([f"r{value:g}" for value in x[:, 0]])}


def line(*rows: float, id: str | None = None, name: str = "x", **more: Any) -> bytes:
    """Return a request with a row ``[value, 1]`` for each value."""
    data = [[value, 1] for value in rows]
    tensor = {"name": name, "shape": [len(rows), 2], "datatype": "FP32", "data": data}
    head = {} if id is None else {"id": id}
    return json.dumps({**head, "inputs": [tensor], **more}).encode() + b"\n"


def expected(*rows: float, id: str | None = None) -> dict[str, Any]:
    shape = [len(rows)]
    y = {"name": "y", "shape": shape, "datatype": "FP32", "data": [value + 1 for value in rows]}
    label = {"name": "label", "shape": shape, "datatype": "BYTES", "data": [f"r{value:g}" for value in rows]}
    return {"model_name": "double", **({} if id is None else {"id": id}), "outputs": [y, label]}


def documents(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


def scored(stores: Stores, data: bytes, model: Model | None = None, **more) -> dict[str, bytes]:
    """Return the outputs of a transform of one object with requests."""
    put(stores, {"a.jsonl": data})
    with engine(model or Labels()) as predictor:
        transform(stores, predictor=predictor, settings=make_settings(read=V2, **more))
    return outputs(stores)


# Requests and responses


def test_response_has_id_names_datatypes_and_shapes_of_its_request(stores):
    data = line(1, id="a") + line(2, 3, 4, id="b") + line(5) + line(id="none")
    found = documents(scored(stores, data)["a.jsonl.out"])
    assert found == [
        expected(1, id="a"),
        expected(2, 3, 4, id="b"),
        expected(5),
        expected(id="none"),
    ]


def test_requested_outputs_are_selected_for_each_request(stores):
    wanted = [{"name": "label"}]
    data = line(1, id="a") + line(2, id="b", outputs=wanted) + line(3, id="c", outputs=wanted)
    found = documents(scored(stores, data)["a.jsonl.out"])
    assert [[o["name"] for o in one["outputs"]] for one in found] == [["y", "label"], ["label"], ["label"]]


@for_each(
    ("bad", "kind", "reason"),
    [
        (b"not json\n", "format", "not JSON: "),
        (b"[1]\n", "decode", "must be a JSON object, not list"),
        (b'{"id":"x"}\n', "decode", "at least one tensor in 'inputs'"),
        (
            line(1, 2).replace(b"[2, 2]", b"[3, 2]"),
            "decode",
            "shape [3, 2] has 6 values, but its data has 4",
        ),
        (line(1).replace(b"FP32", b"FP8"), "decode", "unknown datatype 'FP8'"),
        (line(1, name="z"), "model", "input 'x' is missing (inputs: 'z')"),
        (line(1, -2, 3), "model", "row 2 of 3: negative"),
        (line(-2), "model", "negative"),
        (line(1, outputs=[{"name": "nope"}]), "model", "it has no output 'nope'"),
        (
            line(1).replace(b"}]", b'}, {"name": "w", "shape": [2], "datatype": "INT8", "data": [1, 2]}]'),
            "model",
            "",
        ),
    ],
)
def test_bad_request_is_one_failed_record(bad, kind, reason):
    found = scored(Stores(), line(1, 2, id="a") + bad + line(3, id="b"))
    assert documents(found["a.jsonl.out"]) == [expected(1, 2, id="a"), expected(3, id="b")]
    (failed,) = failed_lines(found["a.jsonl.out.failed"])
    assert (failed["record"], failed["line"], failed["kind"]) == (1, 2, kind)
    assert reason in failed["reason"]
    assert failed["raw"].encode() + b"\n" == bad


def test_value_that_json_lacks_is_one_failed_record(stores):
    class Infinite(Labels):
        def predict(self, x):
            with np.errstate(divide="ignore"):
                return super().predict(x) | {"y": 1 / (x[:, 0] - 2)}

    found = scored(stores, line(1, id="a") + line(2, id="b") + line(3, id="c"), Infinite())
    assert [one["id"] for one in documents(found["a.jsonl.out"])] == ["a", "c"]
    (failed,) = failed_lines(found["a.jsonl.out.failed"])
    assert "element 0 is infinite" in failed["reason"]


def test_retried_requests_give_the_output_of_a_run_without_failures(stores):
    class Recovering(Labels):
        recovered = False

        def predict(self, x):
            return super().predict(abs(x) if self.recovered else x)

    model = Recovering()
    data = line(1, id="a") + line(-2, -3, id="b") + b"[]\n" + line(4, id="c")
    put(stores, {"a.jsonl": data})
    with engine(model) as predictor:
        transform(stores, predictor=predictor, settings=make_settings(read=V2))
        model.recovered = True
        report = FailedRecordsRetry(OUT, stores=stores, predictor=predictor, model_identity="m").execute()
    assert (report.rows_out, report.rows_failed) == (3, 1)
    assert documents(outputs(stores)["a.jsonl.out"]) == [
        expected(1, id="a"),
        expected(2, 3, id="b"),
        expected(4, id="c"),
    ]


# Runs


def test_killed_and_resumed_transform_of_ranges_writes_the_same_bytes(monkeypatch):
    allow_small_tasks(monkeypatch)
    lines = [line(*range(n, n + 1 + n % 3), id=f"q{n}") for n in range(60)]
    lines[7], lines[20] = b"[]\n", line(-1, 5, id="bad")
    used = make_settings(read=V2, tasks={"task_bytes": 1000}, checkpoint_s=0)
    whole, broken = Stores(), Stores()
    for some in (whole, broken):
        put(some, {"a.jsonl": b"".join(lines)})
    with engine(Labels()) as predictor:
        transform(whole, predictor=predictor, settings=used)
        for at in (2, 5, 9):
            with pytest.raises(InjectedError):
                transform(
                    broken, predictor=FailingPredictor(predictor, at=at), settings=used, if_exists="resume"
                )
        report = transform(broken, predictor=predictor, settings=used, if_exists="resume")
    assert (report.rows_out, report.rows_failed) == (58, 2)
    assert outputs(broken) == outputs(whole)
    ids = [one["id"] for one in documents(outputs(whole)["a.jsonl.out"])]
    assert ids == [f"q{n}" for n in range(60) if n not in (7, 20)]


def stream(stores: Stores, predictor: Any, *, used: StreamSettings | None = None, **more) -> Run:
    chosen = used or make_settings(read=V2, preset=StreamSettings)
    return Run(IN, OUT, stores=stores, predictor=predictor, settings=chosen, model_identity="m", **more)


def test_stream_writes_parts_of_json_lines(stores):
    put(stores, {"a.jsonl": line(1, id="a"), "b.txt": line(2, 3, id="b")})
    with engine(Labels()) as predictor:
        stream(stores, predictor).execute()
    assert documents(outputs(stores)["part-00000.jsonl"]) == [expected(1, id="a"), expected(2, 3, id="b")]


def test_limit_and_sample_count_requests(stores):
    put(stores, {"a.jsonl": b"".join(line(n, n, id=f"{n}") for n in range(50))})
    with engine(Labels()) as predictor:
        for number, subset in enumerate((SubsetSettings(limit=3), SubsetSettings(sample=0.2))):
            used = make_settings(read=V2, subset=subset)
            report = transform(stores, predictor=predictor, destination=f"{OUT}{number}/", settings=used)
            assert report.rows_out == len(documents(outputs(stores, f"{OUT}{number}/")["a.jsonl.out"]))
            assert report.rows_out == 3 if subset.limit else 0 < report.rows_out < 25


def test_outcome_of_a_request_is_its_response(stores):
    put(stores, {"a.jsonl": line(1, 2, id="a") + line(-1, id="b")})
    used = StreamSettings(read=make_settings(read=V2).read)
    with engine(Labels()) as predictor:
        flow = open_flow(plan_objects(select_infos(IN, stores, used), None), stores, predictor, used)
        good, bad = [outcome for batch in flow for outcome in batch.outcomes()]
    assert isinstance(good, Prediction)
    response = good.outputs[RESPONSE]
    assert (response.id, response["y"].tolist()) == ("a", [2.0, 3.0])
    assert not bad.ok


def test_responses_are_not_counted_as_texts_of_the_report(stores):
    observation = RunObservation()
    put(stores, {"a.jsonl": line(1, id="a")})
    with engine(Labels()) as predictor:
        stream(stores, predictor, observation=observation).execute()
    assert observation.outputs() == {}
    assert observation.unseen == {RESPONSE}


def test_model_with_a_bug_stops_the_run(stores):
    class Broken(Labels):
        def predict(self, x):
            raise ValueError("a bug")

    put(stores, {"a.jsonl": b"".join(line(n, n, id=f"{n}") for n in range(100))})
    with (
        engine(Broken(), finds_broken_model=True) as predictor,
        pytest.raises(BrokenModelError, match="a bug"),
    ):
        stream(stores, predictor).execute()


# Other formats, and settings


def test_requests_of_one_row_can_be_written_as_columns(stores):
    data = line(1, id="a") + line(2, 3, id="b") + line(4, id="c", outputs=[{"name": "y"}]) + line(5)
    found = scored(stores, data, output={"format": "csv", "join": "position"})
    uri = f"{IN}a.jsonl"
    assert found["a.jsonl.out"].decode().splitlines() == [f"{uri},,0,1,2.0,r1", f"{uri},,3,4,6.0,r5"]
    reasons = [failed["reason"] for failed in failed_lines(found["a.jsonl.out.failed"])]
    assert "shape [2], but the output format has one row for each request" in reasons[0]
    assert "differ in names, datatypes or shapes" in reasons[1]


def test_columns_of_one_row_requests_are_typed(stores, tmp_path):
    found = scored(stores, line(1) + line(2), output={"format": "parquet"})
    file = tmp_path / "a.parquet"
    file.write_bytes(found["a.jsonl.out.parquet"])
    assert pq.read_table(file).to_pydict() == {"y": [2.0, 3.0], "label": ["r1", "r2"]}


def test_object_without_requests_has_an_empty_table(stores, tmp_path):
    found = scored(stores, b"", output={"format": "parquet"})
    file = tmp_path / "a.parquet"
    file.write_bytes(found["a.jsonl.out.parquet"])
    assert pq.read_table(file).num_rows == 0


def test_request_is_joined_to_columns_as_json(stores):
    found = scored(stores, line(1, id="a"), output={"format": "jsonl", "join": "input"})
    (joined,) = documents(found["a.jsonl.out"])
    assert joined == json.loads(line(1, id="a")) | {"SageMakerOutput": {"y": 2.0, "label": "r1"}}


def test_place_of_a_request_is_in_the_parameters(stores):
    (found,) = documents(scored(stores, line(1, id="a"), output={"join": "position"})["a.jsonl.out"])
    place = {"object": f"{IN}a.jsonl", "member": "", "record": 0, "line": 1}
    assert found == expected(1, id="a") | {"parameters": place}


@for_each(
    ("refused", "why"),
    [
        ({"output": {"format": "v2"}}, "not read as requests"),
        ({"read": V2, "output": {"join": "input"}}, "no place for its request"),
        ({"read": V2, "output": {"output_filter": "$.id"}}, "no place for its request"),
        ({"read": V2, "mapping": {"columns": ("a",)}}, "columns has no meaning"),
        ({"read": V2, "mapping": {"text_column": "a"}}, "text_column has no meaning"),
        ({"read": V2, "mapping": {"input_filter": "$.a"}}, "input_filter has no meaning"),
        ({"read": V2, "mapping": {"sequence": "a"}, "preset": StreamSettings}, "sequence has no meaning"),
    ],
)
def test_settings_without_a_meaning_for_requests_are_refused(refused, why):
    with pytest.raises(ConfigError, match=why):
        make_settings(**refused)


@for_each("preset", [StreamSettings, TransformSettings])
def test_default_output_of_requests_is_responses(preset):
    assert make_settings(read=V2, preset=preset).output.format == "v2"


# The schema


def test_schema_has_inputs_with_majority_type_and_shape(stores):
    tags = {"name": "tag", "shape": [1], "datatype": "BYTES", "data": ["t"]}
    x = json.loads(line(1, 2))["inputs"][0]
    both, tag = ({"inputs": inputs} for inputs in ([x, tags], [tags]))
    data = b"[]\n" + line(1) + b"".join(json.dumps(one).encode() + b"\n" for one in (both, both, tag))
    put(stores, {"a.jsonl": data})
    used = make_settings(read=V2)
    infos = list(select_infos(IN, stores, used))
    found = schema_of(infos, stores, used, None)
    assert found.text() == "v2, 2 columns: x number[2 x 2], tag text[1] (from 5 records)"
    assert [column.nulls for column in found.formats[0].columns] == [1, 1]
    for metadata in (None, ModelMetadata("m")):
        trial = try_records(infos, stores, used, metadata, found, count=2)
        assert (trial.records, trial.decoded) == (5, 4)
        assert trial.first_failure is not None
        assert [list(tried.inputs) for tried in trial.first] == [[], ["x"]]
    with pytest.raises(ConfigError, match="80 % of 5 sampled records"):
        schema_of(infos, stores, make_settings(read=V2, schema="strict"), ModelMetadata("m"))


def test_schema_of_records_that_are_no_requests_says_why(stores):
    put(stores, {"a.jsonl": b"[]\n"})
    used = make_settings(read=V2)
    found: Schema = schema_of(list(select_infos(IN, stores, used)), stores, used, None)
    assert "must be a JSON object" in found.formats[0].problem


# Models of whole requests, and models with a state


class Whole(Model):
    """A model that sees whole requests; ``n`` counts elements, so it has no row for each row."""

    outputs = (TensorSpec("n", "INT64", (-1,)),)

    async def predict_request(self, request: InferRequest) -> InferResponse:
        if request.id == "no":
            raise RowError(0, "no thanks")
        if request.id == "bug":
            raise KeyError("bug")
        total = sum(tensor.data.size for tensor in request.inputs)
        n = Tensor("n", np.array([total]))
        return InferResponse((n,), id="invented", parameters=dict(request.parameters))

    def predict(self, **tensors):
        raise AssertionError("requests are whole")


def test_model_of_whole_requests_gets_them_unchanged(stores):
    scale = {"name": "scale", "shape": [], "datatype": "FP64", "data": [2.0]}
    both = json.dumps({"id": "b", "inputs": [json.loads(line(1, 2))["inputs"][0], scale]}).encode() + b"\n"
    data = line(1, 2, 3, id="a", parameters={"k": [1]}) + both + line(1, id="no") + line(1, id="bug")
    found = scored(stores, data, Whole())
    seen = [
        (one["id"], one.get("parameters"), one["outputs"][0]["data"])
        for one in documents(found["a.jsonl.out"])
    ]
    assert seen == [("a", {"k": [1]}, [6]), ("b", None, [5])]
    reasons = [failed["reason"] for failed in failed_lines(found["a.jsonl.out.failed"])]
    assert "no thanks" in reasons[0]
    assert "KeyError: 'bug'" in reasons[1]


def test_place_of_a_request_is_beside_the_parameters_of_the_model(stores):
    (found,) = documents(
        scored(stores, line(1, parameters={"k": 1}), Whole(), output={"join": "key"})["a.jsonl.out"]
    )
    assert found["parameters"] == {"k": 1, "key": f"{IN}a.jsonl"}
    assert "id" not in found


class Running(Model):
    """The running sum of each sequence."""

    inputs = (TensorSpec("x", "FP32", (-1, 2)),)
    outputs = (TensorSpec("sum", "FP32", (-1,)),)

    def step(self, states, x):
        sums = []
        for state, value in zip(states, x[:, 0].tolist(), strict=True):
            state["sum"] = state.get("sum", 0.0) + value
            sums.append(state["sum"])
        return {"sum": np.array(sums, np.float32)}


def step(value: float, sequence: str, **more: bool) -> bytes:
    return line(value, parameters={"sequence_id": sequence, **more})


def test_requests_name_their_sequences(stores):
    data = (
        step(1, "a", sequence_start=True)
        + step(10, "b", sequence_start=True)
        + step(2, "a")
        + step(20, "b", sequence_end=True)
        + step(5, "gone")
        + line(7)
    )
    put(stores, {"a.jsonl": data})
    with engine(Running()) as predictor:
        stream(stores, predictor).execute()
    found = outputs(stores)
    assert [one["outputs"][0]["data"] for one in documents(found["part-00000.jsonl"])] == [
        [1.0],
        [10.0],
        [3.0],
        [30.0],
        [7.0],
    ]
    assert "no such sequence" in failed_lines(found["part-00000.failed.jsonl"])[0]["reason"]


def test_states_of_requests_are_not_resumed(stores):
    put(stores, {"a.jsonl": step(1, "a", sequence_start=True) + 9 * step(2, "a")})
    used = make_settings(read=V2, preset=StreamSettings, flow={"batch_rows_max": 2}, checkpoint_s=0)
    with engine(Running()) as predictor:
        with pytest.raises(InjectedError):
            stream(stores, FailingPredictor(predictor, at=5), used=used).execute()
        with pytest.raises(ResumeRefusedError, match="--overwrite"):
            stream(stores, predictor, used=used, if_exists="resume").execute()


def test_transform_of_steps_is_refused(stores):
    put(stores, {"a.jsonl": step(1, "a", sequence_start=True)})
    with engine(Running()) as predictor, pytest.raises(ConfigError, match="order of the source"):
        transform(stores, predictor=predictor, settings=make_settings(read=V2))
    assert outputs(stores) == {}


# The decoder and the predictor


def test_decoder_converts_text_as_the_model_takes_it():
    tensor = {"name": "t", "shape": [], "datatype": "BYTES", "data": ["ü"]}
    data = json.dumps({"inputs": [tensor]}).encode()
    block = Block(Position(), data, np.array([0]), np.array([len(data)]))
    for bytes_as, wanted in (("bytes", "ü".encode()), ("str", "ü")):
        decoded = RequestDecoder(ModelMetadata("m", bytes_as=bytes_as)).decode(block)
        (request,) = decoded.tensors[REQUEST]
        assert request["t"].tolist() == [wanted]
    (request,) = RequestDecoder(ModelMetadata("m", whole_requests=True)).decode(block).tensors[REQUEST]
    assert request["t"].shape == ()


def test_decoder_keeps_the_kind_of_each_failure():
    lines = [b"{", b"{}", line(1).strip()]
    ends = np.cumsum([len(one) for one in lines])
    block = Block(Position(), b"".join(lines), np.concatenate([[0], ends[:-1]]), ends)
    decoded = RequestDecoder(ModelMetadata("m")).decode(block)
    assert [failure.kind for failure in decoded.failures] == [FailureKind.FORMAT, FailureKind.DECODE]
    assert (decoded.rows.tolist(), len(decoded.tensors[REQUEST])) == ([2], 1)


def request_of(*values: float, id: str = "", dtype: str = "f4", **more: Any) -> InferRequest:
    data = np.array([[value, 0] for value in values], dtype).reshape(-1, 2)
    return InferRequest((Tensor("x", data),), id, **more)


def batch_of(requests: list[InferRequest]) -> InferRequest:
    return InferRequest((Tensor(REQUEST, np.fromiter(requests, object)),), "batch-0")


def outcomes_of(response: InferResponse, count: int) -> list[tuple[Any, ...]]:
    """Return the outcome of each of `count` requests: id and values, or the reason."""
    failed = {failure.row: failure.why for failure in response.failures}
    responses = iter(response[RESPONSE].tolist() if response.outputs else [])
    found: list[tuple[Any, ...]] = []
    for row in range(count):
        if row in failed:
            found.append((failed[row],))
            continue
        one = next(responses)
        found.append((one.id, one["y"].tolist() if one.outputs else [], one.failures))
    assert next(responses, None) is None
    return found


REQUESTS = st.lists(
    st.builds(
        lambda values, name, dtype: request_of(*values, id=name, dtype=dtype),
        st.lists(st.sampled_from([1.0, 2.0, 3.0, -1.0]), max_size=5),
        st.sampled_from(["a", "b", ""]),
        st.sampled_from(["f4", "f8"]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=levels.examples(5))
@given(requests=REQUESTS, rows_max=st.integers(1, 6))
def test_shared_requests_give_the_outcome_of_each_request_alone(requests, rows_max):
    shared, single = ScriptedPredictor(), ScriptedPredictor()
    shared.refuse_values = single.refuse_values = {-1.0}
    response = RequestPredictor(shared, rows_max).submit(batch_of(requests)).result(0)
    alone = [RequestPredictor(single).submit(batch_of([one])).result(0) for one in requests]
    found = outcomes_of(response, len(requests))
    assert found == [outcome for one in alone for outcome in outcomes_of(one, 1)]
    assert [len(outcome) == 1 for outcome in found] == [-1.0 in one["x"][:, 0] for one in requests]
    # No call exceeds the limit, unless one request does; and no two calls could have been one.
    sizes = [one.rows for one in shared.requests]
    whole = {one.rows for one in requests}
    assert all(size <= rows_max or size in whole for size in sizes)
    dtypes = [one["x"].dtype for one in shared.requests]
    starts = iter(requests)
    taken: list[int] = []
    for one in shared.requests:
        first = next(starts)
        left = one.rows - first.rows
        taken.append(first.rows)
        while left > 0:
            left -= next(starts).rows
    if 0 not in whole:
        for before, after, size, first in zip(dtypes, dtypes[1:], sizes, taken[1:], strict=False):
            assert before != after or size + first > rows_max


def test_requests_whose_inputs_disagree_on_rows_do_not_complete_each_other():
    def uneven(rows: int, others: int) -> InferRequest:
        return InferRequest((Tensor("x", np.ones((rows, 2))), Tensor("w", np.ones(others))))

    predictor = ScriptedPredictor(rows_max=8)
    RequestPredictor(predictor).submit(batch_of([uneven(1, 2), uneven(2, 1), request_of(1)]))
    assert [[tensor.rows for tensor in one.inputs] for one in predictor.requests] == [[1, 2], [2, 1], [1]]


def test_calls_of_a_batch_are_full(stores):
    model = Labels()
    scored(stores, b"".join(line(n, id=f"{n}") for n in range(10)), model, flow={"batch_rows_max": 4})
    assert model.calls == [4, 4, 2]


class Answering(ScriptedPredictor):
    """A predictor whose requests fail with `errors`, by the first value of the request."""

    def __init__(self, errors: Mapping[float, Exception]) -> None:
        super().__init__(rows_max=1)
        self.errors = errors

    def submit(self, request):
        error = self.errors.get(float(request["x"][0, 0]))
        if error is None:
            return super().submit(request)
        future: Future[InferResponse] = Future()
        future.set_exception(error)
        return future


@for_each(
    "error",
    [ModelInputError("m", "unfit"), RefusedRowsError("m", "unfit"), PredictError("m", "unfit")],
)
def test_error_of_one_request_is_its_failure(error):
    predictor = RequestPredictor(Answering({2.0: error}))
    response = predictor.submit(batch_of([request_of(n) for n in (1, 2, 3)])).result(0)
    assert response.failures == (RowFailure(1, "unfit"),)
    assert [one["y"].tolist() for one in response[RESPONSE]] == [[2.0], [6.0]]


@for_each(
    "error",
    [EndpointUnavailableError("http://h", "away"), BrokenModelError("m", "a bug")],
)
def test_error_that_concerns_all_requests_fails_the_batch(error):
    predictor = RequestPredictor(Answering({2.0: error}))
    future = predictor.submit(batch_of([request_of(n) for n in (1, 2, 3)]))
    assert future.exception(0) is error


def test_predictor_of_requests_is_that_of_the_model_otherwise():
    inner = ScriptedPredictor(in_flight_max=5)
    predictor = RequestPredictor(inner)
    predictor.start()
    assert (predictor.metadata, predictor.in_flight_max) == (inner.metadata, 5)
    inner.metadata = replace(inner.metadata, is_stateful=True)
    assert not predictor.metadata.is_stateful
    assert predictor.statistics() == inner.statistics()
    predictor.stop()
