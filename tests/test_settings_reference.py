"""docs/reference/ matches the declared settings, and documented files match the schemas."""

import json
import re
import runpy
import tomllib
from pathlib import Path

import jsonschema

from headrace.config import jobs_file, model_file

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
_FENCE = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^    .*\n|^\n)+", re.MULTILINE)


def documents() -> list[dict]:
    """Return the TOML documents of the documentation, the examples, and the docstrings of the readers."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    texts = [text for page in pages for text in _FENCE.findall(page.read_text())]
    texts += [path.read_text() for path in sorted((ROOT / "examples").rglob("*.toml"))]
    for module in (jobs_file, model_file):
        assert module.__doc__
        texts.append(max(_INDENTED.findall(module.__doc__), key=len))
    return [tomllib.loads(text.replace("\n    ", "\n").removeprefix("    ")) for text in texts]


def test_reference_is_as_the_declarations():
    """If this fails, run scripts/write_settings.py."""
    pages = runpy.run_path(str(ROOT / "scripts" / "write_settings.py"))["PAGES"]
    for name, page in pages.items():
        assert (REFERENCE / name).read_text() == page(), name


def test_documented_files_match_the_schemas():
    found = documents()
    for name, keys in (("jobs", jobs_file.JOBS_TABLES), ("model", model_file.MODEL_KEYS)):
        schema = json.loads((REFERENCE / f"{name}.schema.json").read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        validator = jsonschema.Draft202012Validator(schema)
        ours = [document for document in found if document and document.keys() <= keys.keys()]
        assert len(ours) >= 3, f"too few documents of {name}"
        for document in ours:
            errors = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]
            assert errors == [], document
