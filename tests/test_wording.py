"""Rules of wording that ruff cannot check: docstrings' first words, class names, length of lines."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "headrace"
FOLDERS = ("src", "tests", "benchmarks", "docs", "examples", "scripts")
LINE_COLUMNS_MAX = 110

QUESTION_WORDS = re.compile(
    r"(What|Whatever|Whether|Who|Whom|Whoever|Whose|Where|Wherever|Which|How|When|Why)\b"
)
SEE_ONLY = re.compile(r"See [`\[]")


def _python_files() -> Iterator[Path]:
    yield ROOT / "conftest.py"
    for folder in FOLDERS:
        yield from sorted((ROOT / folder).rglob("*.py"))


def _docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every docstring."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text


def _riddles(source: str) -> list[int]:
    """Return the lines of docstrings that begin with a question word."""
    return [line for line, text in _docstrings(source) if QUESTION_WORDS.match(text)]


def _references(source: str) -> list[int]:
    """Return the lines of docstrings that say only "See `X`"; `typing.override` says that better."""
    return [line for line, text in _docstrings(source) if SEE_ONLY.match(text)]


def _public_classes(source: str) -> list[str]:
    body = ast.parse(source).body
    return [node.name for node in body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]


@pytest.mark.parametrize(
    ("docstring", "riddle", "reference"),
    [
        ("What the model returned.", True, False),
        ("Whether a row failed.", True, False),
        ("Whatever was left.", True, False),
        ("See `Store.open`.", False, True),
        ("Return the rows.", False, False),
        ("Whole objects as records.", False, False),
        ("Seek to a byte.", False, False),
    ],
)
def test_rules_tell_good_docstrings_from_bad(docstring, riddle, reference):
    source = f'def rows():\n    """{docstring}"""\n'
    assert bool(_riddles(source)) is riddle
    assert bool(_references(source)) is reference


def test_docstrings_begin_with_the_thing_or_the_action():
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(SRC.rglob("*.py"))
        for line in _riddles(path.read_text())
    ]
    assert found == []


def test_no_docstring_only_refers_to_another():
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(SRC.rglob("*.py"))
        for line in _references(path.read_text())
    ]
    assert found == []


def test_public_class_names_are_unique():
    """Two classes of one name are two concepts badly named, or one concept built twice."""
    modules = defaultdict(list)
    for path in sorted(SRC.rglob("*.py")):
        for name in _public_classes(path.read_text()):
            modules[name].append(path.relative_to(SRC).as_posix())
    assert {name: where for name, where in modules.items() if len(where) > 1} == {}


def test_lines_are_short():
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in _python_files()
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if len(line) > LINE_COLUMNS_MAX
    ]
    assert found == []
