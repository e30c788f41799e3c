"""``headrace infer`` against a real server, over REST and gRPC."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from cases import for_each
from cli.served_models import PROTOCOLS, models_in_process, run_command
from client.server_support import served_models, url_of
from headrace.cli import main
from headrace.cli.commands import run_server_command
from integration.command import headrace
from servers.served import WAIT_S


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with models_in_process(tmp_path_factory.mktemp("served")) as served:
        yield served


@pytest.fixture(params=PROTOCOLS)
def infer(server, request):
    return lambda *arguments: run_command(server, request.param, "infer", *arguments)


def test_response_is_a_table(infer):
    done = infer("sums", "--input", "[[1, 2, 3], [0, 0, 6]]")
    assert done.code == 0, done.err
    assert [line.split() for line in done.out.splitlines()] == [
        ["row", "sum", "share[0]", "share[1]", "share[2]"],
        ["0", "6", "0.166667", "0.333333", "0.5"],
        ["1", "6", "0", "0", "1"],
    ]


@for_each("binary", ["--binary", "--no-binary"])
def test_json_prints_the_whole_response(infer, binary):
    done = infer("sums", "--input", "[1, 2, 3]", "--json", binary)
    (response,) = done.lines
    assert (done.code, response["model_name"]) == (0, "sums")
    assert response["outputs"][0] == {"name": "sum", "shape": [1], "datatype": "FP32", "data": [6.0]}


def test_inputs_and_outputs_can_be_files(infer, tmp_path):
    rows = np.random.default_rng(1).random((3000, 3), np.float32)
    np.save(tmp_path / "rows.npy", rows)
    done = infer("sums", "--input", tmp_path / "rows.npy", "--output", tmp_path / "out.npz")
    assert (done.code, done.out) == (0, "")
    assert "sum, share saved to" in done.err
    with np.load(tmp_path / "out.npz") as out:
        np.testing.assert_allclose(out["sum"], rows.sum(axis=1), rtol=1e-6)
    (tmp_path / "rows.csv").write_text("age,name\n7,Zoë\n8,Bo\n")
    done = infer("pairs", "--input", tmp_path / "rows.csv")
    assert done.out.split() == ["row", "text", "0", "Zoë", "7", "1", "Bo", "8"]


def test_stream_is_printed_item_by_item(infer):
    done = infer("words", "--text", "to be or not", "--stream", "-P", "max_words=3")
    assert (done.code, done.out) == (0, "to be or \n")
    done = infer("words", "--text", "to be", "--stream", "--json")
    assert [line["outputs"][0]["data"] for line in done.lines] == [["to "], ["be "]]


def test_failed_stream_keeps_its_items_and_shows_the_error(infer):
    done = infer("words", "--text", "one fail two", "--stream")
    assert (done.code, done.out) == (1, "one fail \n")
    assert "no more words" in done.error


@for_each(
    ("arguments", "message"),
    [
        (("nobody", "--text", "x"), "no model of this name"),
        (("sums", "--version", "9", "--input", "1"), "no version '9'"),
        (("sums", "--input", "[1, 2]"), "the model takes [-1, 3]"),
        (("sums", "--input", "[-1, 2, 3]"), "a value is negative"),
        (("sums", "--input", "hello"), "--text"),
        (("sums", "--input", "[1,2,3]", "--output", "x.txt"), "use .npz, .npy or .json"),
        (("sums", "--input", "[1,2,3]", "-P", "novalue"), "must be KEY=VALUE"),
    ],
)
def test_failed_request_is_one_line_and_status_1(infer, arguments, message):
    done = infer(*arguments)
    assert done.code == 1
    assert message in done.error


def test_json_error_is_an_event(infer):
    done = infer("nobody", "--text", "x", "--json")
    (event,) = done.lines
    assert (done.code, event["event"], event["type"]) == (1, "error", "EndpointRefusedError")


@for_each(
    ("arguments", "message"),
    [
        ((), "give --input or --text"),
        (("--text", "x", "--stream", "--output", "x.npz"), "--stream cannot be combined"),
        (("--text", "x", "--timeout-s", "0"), "timeout-s"),
    ],
)
def test_wrong_usage_is_status_2_without_a_request(arguments, message):
    done = headrace("infer", "sums", *arguments, "--url", "http://127.0.0.1:1")
    assert done.code == 2
    assert message in done.err


def test_url_is_read_from_the_environment(server):
    done = headrace("infer", "sums", "-i", "[1, 2, 3]", environ={"HEADRACE_URL": server.addresses["rest"]})
    assert done.code == 0, done.err


def test_standard_input_is_a_whole_request(server):
    tensor = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
    done = CliRunner().invoke(
        main,
        ["infer", "sums", "--input", "-", "--json", "--url", server.addresses["rest"]],
        input=json.dumps({"id": "abc", "inputs": [tensor], "outputs": [{"name": "sum"}]}),
    )
    assert done.exit_code == 0, done.stderr
    response = json.loads(done.stdout)
    assert (response["id"], [o["name"] for o in response["outputs"]]) == ("abc", ["sum"])


def test_ctrl_c_is_status_130_without_a_message(capsys):
    async def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        run_server_command(interrupted, json_lines=True)
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_ctrl_c_cancels_the_stream_at_the_server(protocol, tmp_path):
    """The exit status is 130 without a traceback, and the server closes the model's generator."""
    with served_models(tmp_path) as (served, closed):
        command = [sys.executable, "-m", "headrace", "infer", "words", "--text", "one wait", "--stream"]
        process = subprocess.Popen(
            [*command, "--url", url_of(served, protocol)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        try:
            assert process.stdout.read(len("one wait ")) == b"one wait "
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
        assert (process.returncode, out, err) == (130, b"\n", b"")
        closed.accept()[0].close()
