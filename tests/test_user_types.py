"""mypy and pyright accept code of users: the Python blocks of the documentation, and calls of the API.

The blocks of a page make one module, since they build on each other. Each statement keeps its line, so
an error names the line of its page. Each checker checks all modules in one process.
"""

import ast
import inspect
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.markdown import CodeBlockParser

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TIMEOUT_S = 600

# Clients of other projects, which have their own environments.
ABSENT = ("kserve", "mlserver", "open_inference", "tritonclient")

# A snippet shows methods without annotations, as most models are written; their bodies are checked.
MYPY_SETTINGS = f"""\
[mypy]
strict = True
allow_untyped_defs = True
allow_incomplete_defs = True
allow_untyped_calls = True
disallow_subclassing_any = False
disable_error_code = import-untyped
mypy_path = {SRC}

[mypy-headrace.*]
follow_imports = silent

[mypy-{",".join(f"{name}.*" for name in ABSENT)}]
ignore_missing_imports = True

# Large packages whose types no page relies on.
[mypy-ray.*,torch.*,pandas.*,sqlalchemy.*]
follow_imports = skip
"""
PYRIGHT_SETTINGS = {"typeCheckingMode": "standard", "pythonVersion": "3.11", "extraPaths": [str(SRC)]}

# Apache Beam does not annotate its `|` and its generic handlers so that a checker can infer them.
UNTYPED_BY_OTHERS = {
    ("docs_beam.py", "var-annotated"),
    ("docs_beam.py", "reportAttributeAccessIssue"),
}

# Lines with `# wrong` must be reported: without them, a checker that checks nothing would pass.
OUTCOMES = """\
import headrace
import pandas as pd
import polars as pl
import pyarrow as pa
from datasets import Dataset
from typing_extensions import assert_type


def narrow(outcome: headrace.Outcome) -> None:
    if isinstance(outcome, headrace.Prediction):
        assert_type(outcome, headrace.Prediction)
    else:
        assert_type(outcome, headrace.Failure)
    if outcome.ok is True:
        assert_type(outcome, headrace.Prediction)
    else:
        assert_type(outcome, headrace.Failure)
    match outcome:
        case headrace.Failure(why=why):
            assert_type(why, str)
        case prediction:
            assert_type(prediction, headrace.Prediction)


def forget(outcome: headrace.Outcome) -> None:
    print(outcome.position, outcome.ok)
    print(outcome.outputs)  # wrong
    print(outcome.why)  # wrong
    headrace.stream(1, model="model.onnx")  # wrong


async def run(options: headrace.TransformSettings) -> None:
    assert_type(await headrace.run("in/", output="out/", model="model.onnx", resume=True), headrace.Report)
    assert_type(headrace.run_sync("in/", output="out/"), headrace.Report)
    assert_type(await headrace.transform("in/", "out/", settings=options), headrace.Report)
    assert_type(headrace.transform_sync("in/", "out/", settings=options), headrace.Report)
    headrace.run_sync("in/")  # wrong
    headrace.run_sync("in/", output="out/", settings=options)  # wrong
    headrace.transform_sync("in/", "out/", suffix=".csv")  # wrong


def score(frame: pl.DataFrame, dataset: Dataset, options: headrace.TransformSettings) -> None:
    assert_type(headrace.transform(frame, model="model.onnx", settings=options), pl.DataFrame)
    assert_type(headrace.transform_sync(dataset, model="model.onnx"), Dataset)
    columns: pd.DataFrame = headrace.transform(pd.DataFrame({"a": [1]}), model="model.onnx")
    print(columns, headrace.transform(pa.table({"a": [1]}), model="model.onnx"))
    headrace.transform({"a": 1}, model="model.onnx")  # wrong
    headrace.transform(frame, "out/", model="model.onnx")  # wrong
"""


def _module(page: Path) -> str:
    """Return the Python blocks of a page as one module, or "" if the page has none.

    A page with `await` at the top level becomes an async function, whose header takes the page's title line.
    """
    lines = [""] * len(page.read_text().splitlines())
    for example in Sybil(parsers=[CodeBlockParser("python", print)]).parse(page).examples():
        first = example.line + example.parsed.line_offset
        block = str(example.parsed).splitlines()
        lines[first : first + len(block)] = block
    text = "\n".join(lines)
    if not text.strip():
        return ""
    code = compile(text, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    if code.co_flags & inspect.CO_COROUTINE:
        text = "async def page() -> None:" + textwrap.indent(text, "    ")
    return text + "\n"


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a module for each page, `outcomes.py`, and the settings of both checkers."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "outcomes.py").write_text(OUTCOMES)
    for page in PAGES:
        if text := _module(page):
            name = "_".join(page.relative_to(ROOT).with_suffix("").parts).replace("-", "_")
            (folder / f"{name}.py").write_text(text)
    (folder / "mypy.ini").write_text(MYPY_SETTINGS)
    (folder / "pyrightconfig.json").write_text(json.dumps(PYRIGHT_SETTINGS))
    return folder


def _mypy(folder: Path) -> Iterator[tuple[str, int, str, str]]:
    """Yield the module, line, rule and message of each error."""
    command = [sys.executable, "-m", "mypy", "--output", "json", "--cache-dir", str(folder / ".cache"), "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.stderr == ""
    assert done.returncode in (0, 1), done.stdout
    for line in done.stdout.splitlines():
        error = json.loads(line)
        yield Path(error["file"]).name, error["line"], error["code"] or "", error["message"]


def _pyright(folder: Path) -> Iterator[tuple[str, int, str, str]]:
    """Yield the module, line, rule and message of each error."""
    command = [Path(sys.executable).with_name("basedpyright"), "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(
        [*command, "--project", folder],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    for error in json.loads(done.stdout)["generalDiagnostics"]:
        missing = error.get("rule") == "reportMissingImports"
        if not (missing and error["message"].startswith(tuple(f'Import "{name}' for name in ABSENT))):
            line = error["range"]["start"]["line"] + 1
            yield Path(error["file"]).name, line, error.get("rule", ""), error["message"]


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("checker", [_mypy, _pyright])
def test_type_checkers_accept_the_documentation_and_narrow_outcomes(modules, checker):
    wrong = [
        ("outcomes.py", number)
        for number, line in enumerate(OUTCOMES.splitlines(), start=1)
        if line.endswith("# wrong")
    ]
    errors = [error for error in checker(modules) if (error[0], error[2]) not in UNTYPED_BY_OTHERS]
    assert [error for error in errors if error[:2] not in wrong] == []
    assert sorted({error[:2] for error in errors}) == wrong


def test_page_with_await_becomes_a_function_on_the_same_lines(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\nx = 1\n```\n\ntext\n\n```python\nawait f(x)\n```\n")
    lines = _module(page).splitlines()
    assert {number: line for number, line in enumerate(lines, start=1) if line} == {
        1: "async def page() -> None:",
        4: "    x = 1",
        10: "    await f(x)",
    }
