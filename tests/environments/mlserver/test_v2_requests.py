"""A file of requests for ``mlserver infer`` gives the same responses in headrace's runs, line by line."""

import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BIN = Path(sys.executable).parent
SOURCES = Path(__file__).parents[3] / "src"
MODEL = """
    from mlserver import MLModel
    from mlserver.codecs import NumpyCodec, StringCodec
    from mlserver.errors import InferenceError
    from mlserver.types import InferenceRequest, InferenceResponse

    class Rows(MLModel):
        async def predict(self, payload: InferenceRequest) -> InferenceResponse:
            given = {tensor.name: tensor for tensor in payload.inputs}
            if "x" not in given:
                raise InferenceError("the input x is missing")
            x = NumpyCodec.decode_input(given["x"])
            outputs = [
                NumpyCodec.encode_output("sum", x.sum(axis=1).astype(x.dtype)),
                NumpyCodec.encode_output("positive", x > 0),
            ]
            if "name" in given:
                names = [name.upper() for name in StringCodec.decode_input(given["name"])]
                outputs.append(StringCodec.encode_output("name", names))
            wanted = [output.name for output in payload.outputs or []]
            return InferenceResponse(
                model_name=self.name,
                model_version=self.version,
                outputs=[output for output in outputs if not wanted or output.name in wanted],
            )
"""


def request(id: str, datatype: str, rows: list[list[Any]], *more: dict[str, Any], **head: Any) -> str:
    x = {"name": "x", "shape": [len(rows), len(rows[0])], "datatype": datatype, "data": rows}
    return json.dumps({"id": id, "inputs": [x, *more], **head})


NAMES = {
    "name": "name",
    "shape": [2],
    "datatype": "BYTES",
    "data": ["ann", "bö"],
    "parameters": {"content_type": "str"},
}
GOOD = [
    request("floats", "FP32", [[1.5, 2]]),
    request("rows", "INT64", [[1, 2], [3, 4], [5, -6]], parameters={"content_type": "np", "k": 1}),
    request("wide", "FP64", [[0.1, 2, 3], [4, 5, 6]]),
    request("text", "INT32", [[1, 2], [3, 4]], NAMES),
    request("output", "UINT8", [[200, 8]], outputs=[{"name": "sum"}]),
    request("flat", "INT16", [[1, 2]]).replace("[[1, 2]]", "[1, 2]"),
]
BAD = json.dumps({"id": "bad", "inputs": [{"name": "z", "shape": [1], "datatype": "INT8", "data": [1]}]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    (folder / "rows.py").write_text(textwrap.dedent(MODEL))
    settings = {"name": "rows", "implementation": "rows.Rows", "parameters": {"version": "v7"}}
    (folder / "model-settings.json").write_text(json.dumps(settings))
    (folder / "requests.jsonl").write_text("\n".join([*GOOD, BAD]) + "\n")
    return folder


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="module")
def server(folder) -> Iterator[str]:
    """The address of an MLServer with the model."""
    http, grpc, metrics = free_ports(3)
    settings = {"host": "127.0.0.1", "http_port": http, "grpc_port": grpc, "metrics_port": metrics}
    (folder / "settings.json").write_text(json.dumps({**settings, "parallel_workers": 0}))
    command = [BIN / "mlserver", "start", folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        # A full pipe would block the server.
        drain = threading.Thread(target=process.stdout.read)
        try:
            started = f"Uvicorn running on http://127.0.0.1:{http}"
            assert any(started in line for line in process.stdout), "the server did not start"
            drain.start()
            yield f"127.0.0.1:{http}"
        finally:
            process.terminate()
            if drain.ident is not None:
                drain.join()


def mlserver_infer(server: str, file: Path, output: Path, *, batch_size: int = 1) -> list[dict[str, Any]]:
    """Return the lines that ``mlserver infer`` writes, in the order of the input."""
    arguments = ["-u", server, "-m", "rows", "-i", file, "-o", output, "-w", "1", "-r", "1"]
    command = [BIN / "mlserver", "infer", *arguments, "-s", str(batch_size)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    return sorted(lines, key=lambda line: line["parameters"]["batch_index"])


def headrace(*arguments: str | Path, status: int) -> None:
    environ = {**os.environ, "PYTHONPATH": str(SOURCES)}
    command = [sys.executable, "-m", "headrace", *map(str, arguments)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == status, done.stdout + done.stderr


def without_parameters(response: dict[str, Any]) -> dict[str, Any]:
    """Return a response without the parameters of the client: the place of the request."""
    return {key: value for key, value in response.items() if key != "parameters"}


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_endpoint_gives_the_lines_of_mlserver_infer(folder, server, tmp_path):
    file = folder / "requests.jsonl"
    *wanted, refused = mlserver_infer(server, file, tmp_path / "theirs.jsonl")
    assert len(wanted) == len(GOOD)
    assert "error" in refused
    url = f"http://{server}/v2/models/rows"
    headrace("stream", file, "--format", "v2", "--endpoint", url, "--output", tmp_path / "s/", status=3)
    ours = read_lines(tmp_path / "s" / "part-00000.jsonl")
    assert ours == [without_parameters(one) for one in wanted]
    (failed,) = read_lines(tmp_path / "s" / "part-00000.failed.jsonl")
    assert (failed["record"], failed["raw"]) == (len(GOOD), BAD)
    assert "the input x is missing" in failed["reason"]
    headrace("transform", file, tmp_path / "t/", "--content-type", "v2", "--endpoint", url, status=3)
    assert read_lines(tmp_path / "t" / "requests.jsonl.out") == ours


def test_model_gives_the_lines_of_mlserver_infer(folder, server, tmp_path):
    file = folder / "requests.jsonl"
    wanted = mlserver_infer(server, file, tmp_path / "theirs.jsonl")[:-1]
    model = f"{folder / 'rows.py'}:Rows"
    headrace("stream", file, "--format", "v2", "--model", model, "--output", tmp_path / "s/", status=3)
    ours = read_lines(tmp_path / "s" / "part-00000.jsonl")
    # The server has the name and the version of its settings.
    without_version = [{k: v for k, v in one.items() if k != "model_version"} for one in wanted]
    assert [one | {"model_name": "rows"} for one in ours] == list(map(without_parameters, without_version))


def test_micro_batches_of_mlserver_infer_give_the_same_lines(folder, server, tmp_path):
    file = tmp_path / "alike.jsonl"
    lines = [request(f"q{n}", "FP32", [[n, k] for k in range(1 + n % 3)]) for n in range(20)]
    file.write_text("\n".join(lines) + "\n")
    wanted = mlserver_infer(server, file, tmp_path / "theirs.jsonl", batch_size=4)
    url = f"http://{server}/v2/models/rows"
    headrace("stream", file, "--format", "v2", "--endpoint", url, "--output", tmp_path / "s/", status=0)
    ours = read_lines(tmp_path / "s" / "part-00000.jsonl")
    assert ours == [without_parameters(one) for one in wanted]
