"""docs/sequences.md is true: its model is served, its requests are sent, and its tables match the
code.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.config.model_file import read_definition
from headrace.core import errors
from headrace.core.sequence import SEQUENCE_PARAMETERS, SequenceEnd
from headrace.core.tensor import InferRequest, Tensor
from headrace.engine import Engine
from headrace.engine.repository import ModelRepository
from headrace.engine.settings import ServeSettings
from headrace.server.errors import status_of
from headrace.server.metrics import FAMILIES
from headrace.server.openapi import openapi_document
from server.support import MODEL_ROUTES, serving

PAGE = (Path(__file__).parent.parent / "docs" / "sequences.md").read_text()


def block(language: str, index: int = 0) -> str:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[index]


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading."""
    _, _, below = PAGE.partition(f"\n## {heading}\n")
    lines = re.findall(r"^\|(.*)\|$", below.partition("\n## ")[0], re.MULTILINE)
    return [[cell.strip().strip("`") for cell in line.split("|")] for line in lines[2:]]


@pytest.fixture
def definition(tmp_path):
    (tmp_path / "sums.py").write_text(block("python"))
    (tmp_path / "model.toml").write_text(f'name = "sums"\n{block("toml")}')
    return read_definition(tmp_path / "model.toml")


def test_the_model_is_asked_as_the_page_has_it(definition):
    with serving([definition]) as server:
        script = block("bash").replace("localhost:8080", f"127.0.0.1:{server.port}")
        done = subprocess.run(["bash", "-c", script], capture_output=True, check=True, text=True, timeout=60)
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        assert [a["outputs"][0]["data"] if a["outputs"] else None for a in answers] == [[2], [6, 12], None]
        assert answers[-1]["parameters"] == {"sequence_id": "a", "sequence_end": True}
        assert server.get("/v2/models/sums/sequences").json["live_max"] == 200


def test_its_file_sets_what_it_says(definition):
    assert definition.settings.sequences == {"live_max": 200, "idle_ms": 10_000}
    repository = ModelRepository([definition])
    repository.start()
    try:
        engine = repository.engine("sums", "")
        begin = {"sequence_id": "a", "sequence_start": True}
        x = Tensor("x", np.ones((1, 1), np.float32))
        engine.submit(InferRequest((x,), parameters=begin)).result(30)
        assert [info.id for info in engine.sequences()] == ["a"]
    finally:
        repository.stop(drain=False)


def test_the_decoder_frees_each_block():
    namespace: dict[str, Any] = {}
    exec(block("python", 1), namespace)
    decoder = namespace["Decoder"]()
    engine = Engine(lambda: decoder, name="decoder", serving=ServeSettings(isolation="thread"))
    engine.start()
    try:
        token = Tensor("token", np.zeros((200, 1), np.float32))
        starts = (Tensor("sequence_start", np.ones(200, bool)),)
        ids = (Tensor("sequence_id", np.array([f"s{n}" for n in range(200)], object)),)
        engine.submit(InferRequest((token, *ids, *starts))).result(30)
        assert len(decoder.free_blocks) == 56
        response = engine.submit(InferRequest((token, *ids))).result(30)
        assert len(response.failures) == 144
        assert decoder.free_blocks == set()
    finally:
        engine.stop()
    assert decoder.free_blocks == set(range(256))


def test_table_of_parameters_is_complete():
    assert [row[0] for row in rows("Over REST")] == list(SEQUENCE_PARAMETERS)


def test_the_errors_are_as_they_are():
    made = {
        error.kind: error
        for error in (
            errors.SequenceGoneError("a", "why"),
            errors.SequenceLostError("a", "why"),
            errors.SequenceFullError("a", "why", retry_after_s=1.0),
            errors.TooManySequencesError("a", "why", retry_after_s=1.0),
        )
    }
    told = {row[0]: (int(row[1]), row[2], "Retry-After" in row[4]) for row in rows("Errors")}
    found = {kind: status_of(error) for kind, error in made.items()}
    assert told == {k: (s.http, s.grpc.name, s.retry_after_s is not None) for k, s in found.items()}


def test_what_is_named_is_there():
    assert set(re.findall(r"headrace_\w+", PAGE)) <= {family.name for family in FAMILIES}
    assert "/v2/models/{model_name}/sequences" in openapi_document(MODEL_ROUTES, "0")["paths"]
    for why in SequenceEnd:
        assert why.value in PAGE
