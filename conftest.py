"""Tests of the documentation: every Python block of README.md and docs/ runs, in order, page by page.

The blocks of a page share a namespace and a current directory with sample files (`_write_samples`).
A block may use `await` and `async for` at its top level. The HTML comment ``<!-- skip: next "why" -->``
before a block skips it. Parallel runs must keep a page in one process (``--dist loadfile``).

Console blocks of docs/serving.md and docs/jobs.md run too, line by line, and must succeed. ``headrace
serve`` and ``headrace up`` run in the background until the next of them or the page's end. Their free
ports replace 8080, 8081 and 8090 in later blocks.
"""

import ast
import asyncio
import inspect
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, SkipParser

ROOT = Path(__file__).parent

pytest_plugins = ["levels"]

SAMPLE_ROWS = 20
SAMPLE_COLUMNS = ("age", "calls", "spent", "visits")
SAMPLE_MODEL = """\
from headrace import Model


class Churn(Model):
    def predict(self, x):
        return x.mean(axis=1)
"""


def _sample_csv(first: int) -> str:
    rows = (
        [str(row + column / 4) for column in range(len(SAMPLE_COLUMNS))]
        for row in range(first, first + SAMPLE_ROWS)
    )
    return "\n".join(",".join(cells) for cells in (SAMPLE_COLUMNS, *rows)) + "\n"


def _sample_onnx() -> bytes:
    """``score = x @ weights``: x is float32 (rows, 4), score is float32 (rows, 1)."""
    from onnx import TensorProto, helper  # noqa: PLC0415 - only pages need it

    width = len(SAMPLE_COLUMNS)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, width])]
    outputs = [helper.make_tensor_value_info("score", TensorProto.FLOAT, [None, 1])]
    weights = helper.make_tensor("weights", TensorProto.FLOAT, [width, 1], [1.0 / width] * width)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weights"], ["score"])], "churn", inputs, outputs, [weights]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model.SerializeToString()


def _write_samples(folder: Path) -> None:
    """Write the files that pages use: rows.csv, rows.tar.gz (two members), model.onnx and churn.py."""
    (folder / "rows.csv").write_text(_sample_csv(0))
    (folder / "churn.py").write_text(SAMPLE_MODEL)
    (folder / "model.onnx").write_bytes(_sample_onnx())
    with tarfile.open(folder / "rows.tar.gz", "w:gz") as tar:
        for number in range(2):
            data = _sample_csv(number * SAMPLE_ROWS).encode()
            member = tarfile.TarInfo(f"rows-{number}.csv")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def _enter_page(namespace: dict[str, Any]) -> None:
    folder = tempfile.mkdtemp(prefix="headrace-docs-")
    _write_samples(Path(folder))
    namespace["__page__"] = (folder, Path.cwd())
    os.environ["HEADRACE_CACHE"] = f"{folder}/cache"
    os.chdir(folder)


def _leave_page(namespace: dict[str, Any]) -> None:
    _stop_server(namespace)
    folder, before = namespace["__page__"]
    os.chdir(before)
    os.environ.pop("HEADRACE_CACHE", None)
    shutil.rmtree(folder)


def _run_block(example: Example) -> None:
    """Run one block with the page's line numbers in tracebacks."""
    source = "\n" * (example.line + example.parsed.line_offset) + _with_ports(
        example.parsed, example.namespace
    )
    code = compile(source, example.path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    result = eval(code, example.namespace)  # noqa: S307 - our own documentation
    if inspect.iscoroutine(result):
        asyncio.run(result)


PAGES_WITH_COMMANDS = ("choosing.md", "deployment.md", "jobs.md", "serving.md")
WAIT_S = 60.0
_LISTENS = re.compile(r"(rest|grpc|metrics|jobs)\s+(\w+://\S+)")
_SERVER, _PORTS = "__server__", "__ports__"
_USUAL_PORTS = {"rest": "8080", "grpc": "8081", "metrics": "8082", "jobs": "8090"}
_PORT_OPTIONS = {
    "serve": {"--rest-port": "rest", "--grpc-port": "grpc", "--metrics-port": "metrics"},
    "up": {"--port": "jobs", "--rest-port": "rest", "--metrics-port": "metrics"},
}


def _run_commands(example: Example) -> None:
    """Run the commands of a console block; a backslash joins a line with the next."""
    if Path(example.path).name not in PAGES_WITH_COMMANDS:
        return
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for line in str(example.parsed).replace("\\\n", " ").splitlines():
        command = _with_ports(line, example.namespace)
        if command.startswith(("headrace serve", "headrace up")):
            words = shlex.split(command.replace("$PWD", str(Path.cwd())), comments=True)
            _start_server(words, example.namespace, environ)
        elif command.strip():
            done = subprocess.run(  # noqa: S602 - our own documentation
                command,
                shell=True,
                env=environ | _server_environment(example.namespace),
                capture_output=True,
                text=True,
                check=False,
                timeout=WAIT_S,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def _with_ports(text: str, namespace: dict[str, Any]) -> str:
    """Return the text with the ports of the page's server."""
    for listener, port in namespace.get(_PORTS, {}).items():
        text = text.replace(f"localhost:{_USUAL_PORTS[listener]}", f"localhost:{port}")
    return text


def _server_environment(namespace: dict[str, Any]) -> dict[str, str]:
    """Return the variables that hold the server's address for commands."""
    ports = namespace.get(_PORTS, {})
    names = {"rest": "HEADRACE_URL", "jobs": "HEADRACE_SERVER"}
    return {
        names[listener]: f"http://localhost:{port}" for listener, port in ports.items() if listener in names
    }


def _start_server(command: list[str], namespace: dict[str, Any], environ: dict[str, str]) -> None:
    _stop_server(namespace)
    # A page's second server takes the ports of the first, for the clients of later blocks.
    taken = namespace.get(_PORTS, {})
    options = _PORT_OPTIONS[command[1]].items()
    free = [word for option, listener in options for word in (option, taken.get(listener, "0"))]
    server = subprocess.Popen([*command, *free], env=environ, stderr=subprocess.PIPE, text=True)  # noqa: S603
    namespace[_SERVER] = server
    output: list[str] = []
    ports: dict[str, str] = {}
    assert server.stderr is not None
    for line in server.stderr:
        output.append(line)
        if found := _LISTENS.match(line):
            ports[found[1]] = found[2].rpartition(":")[2]
        if line.strip() == "ready":
            namespace[_PORTS] = ports
            return
    raise AssertionError(f"{shlex.join(command)} ended: {''.join(output)}")


def _stop_server(namespace: dict[str, Any]) -> None:
    server = namespace.pop(_SERVER, None)
    if server is None:
        return
    server.send_signal(signal.SIGTERM)
    _, output = server.communicate(timeout=WAIT_S)
    assert server.returncode == 0, output


pytest_collect_file = Sybil(
    path=str(ROOT),
    patterns=["README.md", "docs/*.md", "docs/**/*.md"],
    parsers=[
        CodeBlockParser("python", _run_block),
        CodeBlockParser("console", _run_commands),
        SkipParser(),
    ],
    setup=_enter_page,
    teardown=_leave_page,
).pytest()
