"""``headrace infer`` as it is typed, against a real server, over REST and gRPC."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from client.server_support import served_models, url_of
from integration.command import headrace
from servers.served import WAIT_S


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    with served_models(tmp_path_factory.mktemp("served")) as served:
        yield served


@pytest.fixture(params=["rest", "grpc"])
def infer(models, request):
    url = url_of(models[0], request.param)
    return lambda *arguments, **environ: headrace("infer", *arguments, "--url", url, environ=environ)


def test_a_row_is_answered_as_a_table(infer):
    done = infer("sums", "--input", "[[1, 2, 3], [0, 0, 6]]")
    assert done.code == 0, done.err
    assert [line.split() for line in done.out.splitlines()] == [
        ["row", "sum", "share[0]", "share[1]", "share[2]"],
        ["0", "6", "0.166667", "0.333333", "0.5"],
        ["1", "6", "0", "0", "1"],
    ]


@pytest.mark.parametrize("binary", ["--binary", "--no-binary"])
def test_the_whole_answer_is_json_for_machines(infer, binary):
    done = infer("sums", "--input", "[1, 2, 3]", "--json", binary)
    (answer,) = done.lines
    assert (done.code, answer["model_name"]) == (0, "sums")
    assert answer["outputs"][0] == {"name": "sum", "shape": [1], "datatype": "FP32", "data": [6.0]}


def test_files_go_in_and_come_out(infer, tmp_path):
    rows = np.random.default_rng(1).random((5000, 3), np.float32)
    np.save(tmp_path / "rows.npy", rows)
    done = infer("sums", "--input", tmp_path / "rows.npy", "--output", tmp_path / "out.npz")
    assert (done.code, done.out) == (0, "")
    assert "sum, share saved to" in done.err
    with np.load(tmp_path / "out.npz") as out:
        np.testing.assert_allclose(out["sum"], rows.sum(axis=1), rtol=1e-6)
    (tmp_path / "rows.csv").write_text("age,name\n7,Zoë\n8,Bo\n")
    done = infer("pairs", "--input", tmp_path / "rows.csv")
    assert done.out.split() == ["row", "text", "0", "Zoë", "7", "1", "Bo", "8"]


def test_a_stream_is_printed_as_it_comes(infer):
    done = infer("words", "--text", "to be or not", "--stream", "-P", "max_words=3")
    assert (done.code, done.out) == (0, "to be or \n")
    done = infer("words", "--text", "to be", "--stream", "--json")
    assert [line["outputs"][0]["data"] for line in done.lines] == [["to "], ["be "]]


def test_a_stream_that_breaks_keeps_what_came_and_says_why(infer):
    done = infer("words", "--text", "one fail two", "--stream")
    assert (done.code, done.out) == (1, "one fail \n")
    assert "no more words" in done.error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nobody", "--text", "x"), "no model of this name"),
        (("sums", "--version", "9", "--input", "1"), "no version '9'"),
        (("sums", "--input", "[1, 2]"), "the model takes [-1, 3]"),
        (("sums", "--input", "[-1, 2, 3]"), "a value is negative"),
        (("sums", "--input", "hello"), "--text"),
        (("sums", "--input", "[1,2,3]", "--output", "x.txt"), "ends in .npz"),
        (("sums", "--input", "[1,2,3]", "-P", "novalue"), "must be KEY=VALUE"),
    ],
)
def test_what_is_wrong_is_one_line_and_status_1(infer, arguments, said):
    done = infer(*arguments)
    assert done.code == 1
    assert said in done.error


def test_an_error_is_an_event_for_machines(infer):
    done = infer("nobody", "--text", "x", "--json")
    (event,) = done.lines
    assert (done.code, event["event"], event["type"]) == (1, "error", "EndpointRefusedError")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give --input or --text"),
        (("--text", "x", "--stream", "--output", "x.npz"), "cannot be saved"),
        (("--text", "x", "--timeout-s", "0"), "timeout-s"),
    ],
)
def test_wrong_usage_is_status_2_and_asks_nobody(arguments, said):
    done = headrace("infer", "sums", *arguments, "--url", "http://127.0.0.1:1")
    assert done.code == 2
    assert said in done.err


def test_the_url_may_stand_in_the_environment(models):
    done = headrace("infer", "sums", "-i", "[1, 2, 3]", environ={"HEADRACE_URL": models[0].rest})
    assert done.code == 0, done.err


def test_standard_input_may_be_a_whole_request(models):
    tensor = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
    command = [sys.executable, "-m", "headrace", "infer", "sums", "--input", "-", "--json"]
    done = subprocess.run(
        command,
        input=json.dumps({"id": "abc", "inputs": [tensor], "outputs": [{"name": "sum"}]}),
        env={**os.environ, "HEADRACE_URL": models[0].rest},
        capture_output=True, text=True, check=True, timeout=WAIT_S,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    assert (answer["id"], [o["name"] for o in answer["outputs"]]) == ("abc", ["sum"])


@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_ctrl_c_cancels_the_stream_at_the_server(protocol, tmp_path):
    """What came is there, the status is 130, no traceback is printed, and the model's generator is closed."""
    with served_models(tmp_path) as (served, closed):
        command = [sys.executable, "-m", "headrace", "infer", "words", "--text", "one wait", "--stream"]
        process = subprocess.Popen(
            [*command, "--url", url_of(served, protocol)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        try:
            assert process.stdout.read(len("one wait ")) == b"one wait "
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
        assert (process.returncode, out, err) == (130, b"\n", b"")
        closed.accept()[0].close()
