"""A stream with an endpoint has the output of a local model, whatever faults the endpoint has."""

import asyncio
from pathlib import Path

import pytest

import headrace as hr
from headrace.core.errors import EndpointUnavailableError
from headrace.testing import EndpointFault, ScriptedEndpoint
from integration.command import DOUBLE, CommandResult, contents, failures, headrace, leftovers, predictions

ROWS = 200
X = hr.TensorSpec("x", "FP32", (-1, 2))
BUSY = EndpointFault(status=503, body=b"busy")


def double(tensors):
    return {"output": tensors["x"][:, 0] * 2}


@pytest.fixture
def endpoint():
    with ScriptedEndpoint(double, inputs=(X,)) as endpoint:
        yield endpoint


@pytest.fixture(autouse=True)
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a CSV file, of which one record has no numbers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_ENDPOINT_TOKEN", raising=False)
    lines = [f"{i},1\n" for i in range(ROWS)]
    lines[7] = "oops,1\n"
    Path("in.csv").write_text("".join(lines))
    Path("double.py").write_text(DOUBLE)
    return tmp_path


def score(url: str, *more: str, output: str = "out") -> CommandResult:
    return headrace(
        "stream", "in.csv", "--endpoint", url, "--output", output, "--batch-rows-max", "4",
        "--part-bytes-max", "300", *more,
    )  # fmt: skip


def local(output: str = "local") -> dict[str, bytes]:
    """Return the output of a local model for the same source and settings."""
    done = headrace(
        "stream", "in.csv", "--model", "double.py", "--output", output, "--batch-rows-max", "4",
        "--part-bytes-max", "300",
    )  # fmt: skip
    assert done.code == 3
    return contents(Path(output))


def error(done: CommandResult) -> str:
    """Return the last line on standard error; earlier lines may log retries."""
    last = done.err.splitlines()[-1]
    assert last.startswith("error: "), done.err
    return last.removeprefix("error: ")


@pytest.mark.parametrize("protocol", ["oip", "torchserve"])
def test_slow_failing_and_reordered_responses_give_a_local_models_output(endpoint, protocol):
    endpoint.delay_s = lambda n: (n * 7 % 5) / 500
    endpoint.faults += [
        None,
        BUSY,
        None,
        EndpointFault(drop=True),
        BUSY,
        EndpointFault(cut_bytes=1),
        None,
        BUSY,
    ]
    done = score(getattr(endpoint, f"{protocol}_url"), "--json", "--in-flight-max", "8")
    assert done.code == 3, done.err
    assert contents(Path("out")) == local()
    assert (done.report["records_in"], done.report["rows_out"], done.report["rows_failed"]) == (
        ROWS,
        ROWS - 1,
        1,
    )
    assert done.report["retries"] == 5
    assert endpoint.completed != sorted(endpoint.completed)
    assert 1 < endpoint.in_flight_peak <= 8
    assert leftovers(Path("out")) == []


def test_json_only_endpoint_gives_the_same_output(endpoint):
    endpoint.binary = False
    assert score(endpoint.oip_url).code == 3
    assert contents(Path("out")) == local()
    assert sum(r.binary for r in endpoint.requests) == 1


def test_requests_in_flight_are_limited(endpoint):
    endpoint.delay_s = lambda _: 0.002
    score(endpoint.oip_url, "--in-flight-max", "3")
    assert endpoint.in_flight_peak == 3


def test_poisoned_row_is_one_failed_record():
    def picky(tensors):
        bad = [i for i, v in enumerate(tensors["x"][:, 0].tolist()) if v == 42]
        if bad:
            raise hr.RowError(bad[0], "42 is not taken")
        return double(tensors)

    Path("in.csv").write_text("".join(f"{i},1\n" for i in range(ROWS)))
    with ScriptedEndpoint(picky, inputs=(X,)) as endpoint:
        assert score(endpoint.oip_url).code == 3
    (failed,) = failures(Path("out"))
    assert (failed["record"], failed["kind"], failed["raw"]) == (42, "model", "42,1")
    assert "HTTP 400" in failed["reason"]
    assert "42 is not taken" in failed["reason"]
    assert predictions(Path("out")).split() == [b"%.1f" % (2.0 * i) for i in range(ROWS) if i != 42]


@pytest.mark.parametrize("how", ["gone", "busy", "hanging"])
def test_run_is_resumable_after_its_endpoint_went_down(endpoint, how):
    expected = local()
    fault = {"gone": EndpointFault(drop=True), "busy": BUSY, "hanging": EndpointFault(hang=True)}[how]
    endpoint.faults += [None] * 20
    endpoint.faults += [fault] * 1000
    done = score(endpoint.oip_url, "--retry-s", "0.3", "--timeout-s", "0.5", "--checkpoint-s", "0")
    assert done.code == 1
    message = error(done)
    assert endpoint.oip_url in message
    assert "no response for" in message
    assert "Is the endpoint up" in message
    first = predictions(Path("out"))
    assert b"".join(expected[n] for n in sorted(expected) if n.endswith(".csv")).startswith(first)
    endpoint.faults.clear()
    before = len(endpoint.requests)
    assert score(endpoint.oip_url, "--resume").code == 3
    assert len(endpoint.requests) - before < ROWS // 4
    assert contents(Path("out")) == expected


def test_unreachable_endpoint_is_reported_after_the_retries(endpoint):
    endpoint.stop()
    done = score(endpoint.oip_url, "--retry-s", "0.2")
    assert done.code == 1
    assert "Is the endpoint up and the URL right?" in error(done)
    assert not Path("out").exists()


@pytest.mark.parametrize("protocol", ["oip", "torchserve"])
def test_wrong_token_ends_the_run_at_once(endpoint, protocol):
    endpoint.token = "right"
    done = score(getattr(endpoint, f"{protocol}_url"), "--retry-s", "600")
    assert done.code == 1
    assert "HTTP 401" in error(done)
    assert "HEADRACE_ENDPOINT_TOKEN" in error(done)
    assert len(endpoint.requests) < ROWS // 2
    assert list(Path().glob("out/**/part-*")) == []


def test_token_is_read_from_the_environment(endpoint, monkeypatch):
    endpoint.token = "right"
    monkeypatch.setenv("HEADRACE_ENDPOINT_TOKEN", "right")
    assert score(endpoint.oip_url).code == 3
    written = b"".join(p.read_bytes() for p in Path("out").rglob("*") if p.is_file())
    assert b"right" not in written


def test_response_without_a_row_ends_the_run_and_names_the_batch():
    def losing(tensors):
        y = tensors["x"][:, 0] * 2
        return {"output": y[1:] if 40 in tensors["x"][:, 0] else y}

    with ScriptedEndpoint(losing, inputs=(X,)) as endpoint:
        done = score(endpoint.oip_url)
    assert done.code == 1
    assert "request batch-10: output 'output' has 3 rows for 4 rows" in error(done)


def test_resumed_run_needs_the_same_model_under_any_url(endpoint):
    assert score(endpoint.oip_url).code == 3
    assert score(endpoint.url, "--endpoint-model", "model", "--resume").code == 3
    done = score(endpoint.oip_url + "/versions/1", "--resume")
    assert done.code == 1
    assert "model" in error(done)


def test_python_api_uses_the_endpoint_too(endpoint):
    settings = hr.StreamSettings(flow=hr.FlowSettings(batch_rows_max=4))
    options = hr.PredictorOptions(in_flight_max=4, retry_s=5.0)
    report = hr.run_sync(
        "in.csv", output="sync", endpoint=endpoint.oip_url, settings=settings, options=options
    )
    assert (report.model, report.rows_out) == ("model", ROWS - 1)
    again = asyncio.run(hr.run("in.csv", output="async", endpoint=endpoint.oip_url, settings=settings))
    assert again.rows_out == ROWS - 1
    assert contents(Path("sync")) == contents(Path("async"))
    with hr.stream("in.csv", endpoint=endpoint.oip_url, settings=settings) as outcomes:
        found = list(outcomes)
    assert [o.position.record for o in found] == list(range(ROWS))
    assert [float(o.outputs["output"]) for o in found if o.ok] == [2.0 * i for i in range(ROWS) if i != 7]


def test_run_sync_raises_the_error_that_ended_it(endpoint):
    endpoint.stop()
    with pytest.raises(EndpointUnavailableError):
        hr.run_sync(
            "in.csv", output="out", endpoint=endpoint.oip_url, options=hr.PredictorOptions(retry_s=0.1)
        )
