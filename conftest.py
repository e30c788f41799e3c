"""The documentation is tested: every Python block of README.md and docs/ runs, in order, page by page.

A page's blocks share their names, and a folder of their own as the current directory, with the files that the
pages speak of (see `_write_samples`). A block may use `await` and `async for` at its top level. To leave a block
out, write an HTML comment before it: ``<!-- skip: next "why" -->``. Parallel runs must keep a page together
(``--dist loadfile``).

Shell commands (console blocks) of docs/serving.md and docs/jobs.md run too, line by line, and must succeed. ``headrace
serve`` and ``headrace up`` run beside the page, on free ports that take the place of 8080, 8081 and 8090 in what follows,
until the next one or the page's end.
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
    from onnx import TensorProto, helper  # noqa: PLC0415 - only the pages that run need it

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
    """What the pages speak of: rows.csv, rows.tar.gz (two members), model.onnx, and churn.py with a Model."""
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
    os.chdir(folder)


def _leave_page(namespace: dict[str, Any]) -> None:
    _stop_server(namespace)
    folder, before = namespace["__page__"]
    os.chdir(before)
    shutil.rmtree(folder)


def _run_block(example: Example) -> None:
    """Run one block; line numbers in tracebacks are those of the page."""
    source = "\n" * (example.line + example.parsed.line_offset) + _moved(example.parsed, example.namespace)
    code = compile(source, example.path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    result = eval(code, example.namespace)  # noqa: S307 - our own documentation
    if inspect.iscoroutine(result):
        asyncio.run(result)


PAGES_WITH_COMMANDS = ("serving.md", "jobs.md")
WAIT_S = 60.0
_LISTENS = re.compile(r"(rest|grpc|metrics|jobs)\s+(\w+://\S+)")
_SERVER, _PORTS = "__server__", "__ports__"
_USUAL_PORTS = {"rest": "8080", "grpc": "8081", "metrics": "8082", "jobs": "8090"}
_PORT_OPTIONS = {
    "serve": {"--rest-port": "rest", "--grpc-port": "grpc", "--metrics-port": "metrics"},
    "up": {"--port": "jobs", "--rest-port": "rest"},
}


def _run_commands(example: Example) -> None:
    """Run a console block's commands; a backslash at a line's end goes on with the next."""
    if Path(example.path).name not in PAGES_WITH_COMMANDS:
        return
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for line in str(example.parsed).replace("\\\n", " ").splitlines():
        command = _moved(line, example.namespace)
        if command.startswith(("headrace serve", "headrace up")):
            words = shlex.split(command.replace("$PWD", str(Path.cwd())), comments=True)
            _start_server(words, example.namespace, environ)
        elif command.strip():
            done = subprocess.run(  # noqa: S602 - our own documentation
                command,
                shell=True,
                env=environ | _asked_at(example.namespace),
                capture_output=True,
                text=True,
                check=False,
                timeout=WAIT_S,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def _moved(text: str, namespace: dict[str, Any]) -> str:
    """What a page says, with the ports that its server has."""
    for door, port in namespace.get(_PORTS, {}).items():
        text = text.replace(f"localhost:{_USUAL_PORTS[door]}", f"localhost:{port}")
    return text


def _asked_at(namespace: dict[str, Any]) -> dict[str, str]:
    """Where commands ask that are told no address."""
    ports = namespace.get(_PORTS, {})
    names = {"rest": "HEADRACE_URL", "jobs": "HEADRACE_SERVER"}
    return {names[door]: f"http://localhost:{port}" for door, port in ports.items() if door in names}


def _start_server(command: list[str], namespace: dict[str, Any], environ: dict[str, str]) -> None:
    _stop_server(namespace)
    # A page's second server is where its first was: what asks that one asks this.
    taken = namespace.get(_PORTS, {})
    free = [w for option, door in _PORT_OPTIONS[command[1]].items() for w in (option, taken.get(door, "0"))]
    server = subprocess.Popen([*command, *free], env=environ, stderr=subprocess.PIPE, text=True)  # noqa: S603
    namespace[_SERVER] = server
    said: list[str] = []
    ports: dict[str, str] = {}
    assert server.stderr is not None
    for line in server.stderr:
        said.append(line)
        if found := _LISTENS.match(line):
            ports[found[1]] = found[2].rpartition(":")[2]
        if line.strip() == "ready":
            namespace[_PORTS] = ports
            return
    raise AssertionError(f"{shlex.join(command)} ended: {''.join(said)}")


def _stop_server(namespace: dict[str, Any]) -> None:
    server = namespace.pop(_SERVER, None)
    if server is None:
        return
    server.send_signal(signal.SIGTERM)
    _, said = server.communicate(timeout=WAIT_S)
    assert server.returncode == 0, said


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
