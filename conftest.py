"""The documentation is tested: every Python block of README.md and docs/ runs, in order, page by page.

A page's blocks share their names, and a folder of their own as the current directory, with the files that the
pages speak of (see `_write_samples`). A block may use `await` and `async for` at its top level. To leave a block
out, write an HTML comment before it: ``<!-- skip: next "why" -->``. Parallel runs must keep a page together
(``--dist loadfile``).
"""

import ast
import asyncio
import inspect
import io
import os
import shutil
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
    folder, before = namespace["__page__"]
    os.chdir(before)
    shutil.rmtree(folder)


def _run_block(example: Example) -> None:
    """Run one block; line numbers in tracebacks are those of the page."""
    source = "\n" * (example.line + example.parsed.line_offset) + example.parsed
    code = compile(source, example.path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    result = eval(code, example.namespace)  # noqa: S307 - our own documentation
    if inspect.iscoroutine(result):
        asyncio.run(result)


pytest_collect_file = Sybil(
    path=str(ROOT),
    patterns=["README.md", "docs/*.md", "docs/**/*.md"],
    parsers=[CodeBlockParser("python", _run_block), SkipParser()],
    setup=_enter_page,
    teardown=_leave_page,
).pytest()
