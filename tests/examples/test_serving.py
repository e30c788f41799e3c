"""Each serving example runs by the real command, answers over REST, and is right about real data."""

import http.client
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from integration.command import headrace
from servers.served import WAIT_S, serving

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "serving"
REFERENCE = ROOT / "tests" / "data" / "minilm-l6-v2-fp32.npy"
SENTENCES = [
    "The cat sits on the mat.",
    "A kitten is lying on a rug.",
    "Interest rates rose again this quarter.",
    "The central bank made loans more expensive.",
]


class ServedExample:
    """A server of one example, asked over plain HTTP."""

    def __init__(self, url: str, model: str):
        self.url = url
        self.model = model

    @contextmanager
    def _post(self, action: str, document: dict) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=WAIT_S)
        try:
            connection.request("POST", f"/v2/models/{self.model}/{action}", json.dumps(document))
            with connection.getresponse() as answer:
                yield answer
        finally:
            connection.close()

    def infer(
        self, name: str, datatype: str, rows: list, shape: list[int] | None = None
    ) -> dict[str, np.ndarray]:
        """Return the outputs by name."""
        tensor = {"name": name, "datatype": datatype, "shape": shape or [len(rows)], "data": rows}
        with self._post("infer", {"inputs": [tensor]}) as answer:
            document = json.loads(answer.read())
        assert answer.status == 200, document
        return {o["name"]: np.array(o["data"]).reshape(o["shape"]) for o in document["outputs"]}

    def events(self, **document):
        """Yield the events of a stream as they arrive."""
        with self._post("generate_stream", document) as answer:
            assert (answer.status, answer.headers["content-type"]) == (
                200,
                "text/event-stream; charset=utf-8",
            )
            for line in answer:
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))


@pytest.fixture(scope="module")
def served(request):
    folder = request.param
    with serving(folder) as where:
        yield ServedExample(where.rest, folder.name)


def example(name: str):
    return pytest.mark.parametrize("served", [EXAMPLES / name], indirect=True, ids=[name])


def tumour_model(tmp_path: Path) -> Path:
    """Make the data of the demo, and return the folder of the example with the demo's model."""
    demo = ROOT / "examples" / "demo" / "make_demo_data.py"
    made = [sys.executable, str(demo), "--folder", str(tmp_path), "--repeat", "1", "--members", "1"]
    subprocess.run(made, check=True, timeout=WAIT_S)
    folder = tmp_path / "breast-cancer"
    folder.mkdir()
    shutil.copy(EXAMPLES / "breast-cancer" / "model.toml", folder)
    shutil.copy(tmp_path / "model.onnx", folder)
    return folder


def test_tumours_are_told_as_scikit_learn_tells_them(tmp_path):
    folder = tumour_model(tmp_path)
    from sklearn.datasets import load_breast_cancer

    rows = load_breast_cancer().data[:100].astype(np.float32)
    with np.load(tmp_path / "expected.npz") as expected, serving(folder) as where:
        outputs = ServedExample(where.rest, "breast-cancer").infer("x", "FP32", rows.tolist(), [100, 30])
        np.testing.assert_allclose(outputs["probabilities"], expected["probabilities"][:100], atol=1e-5)
        np.savetxt(tmp_path / "rows.csv", rows, delimiter=",", fmt="%.9g")
        done = headrace(
            "infer", "breast-cancer", "--input", tmp_path / "rows.csv", "--output", tmp_path / "out.npz",
            "--url", where.grpc
        )  # fmt: skip
        assert done.code == 0, done.err
    with np.load(tmp_path / "out.npz") as saved:
        np.testing.assert_allclose(saved["probabilities"], outputs["probabilities"], atol=1e-6)


# The same folders in offline runs


@pytest.mark.parametrize("command", ["stream", "transform"])
def test_tumours_are_scored_from_files(tmp_path, command):
    folder = tumour_model(tmp_path)
    from sklearn.datasets import load_breast_cancer

    np.savetxt(tmp_path / "rows.csv", load_breast_cancer().data[:100], delimiter=",", fmt="%.9g")
    found = [p["probabilities"] for p in score(command, tmp_path / "rows.csv", folder, tmp_path / "out")]
    with np.load(tmp_path / "expected.npz") as expected:
        np.testing.assert_allclose(found, expected["probabilities"][:100], atol=1e-5)


@pytest.mark.parametrize("command", ["stream", "transform"])
def test_sentences_are_embedded_from_files(tmp_path, command):
    (tmp_path / "sentences.txt").write_text("\n".join(SENTENCES))
    found = [
        p["embedding"]
        for p in score(command, tmp_path / "sentences.txt", EXAMPLES / "sentence-embedding", tmp_path / "out")
    ]
    assert (np.array(found) * np.load(REFERENCE)).sum(axis=1).min() > 0.999


def test_files_of_a_folder_are_told(tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / "in")
    found = score("stream", f"{tmp_path}/in/", EXAMPLES / "file-type", tmp_path / "out", "--format", "whole")
    assert [p["label"] for p in found] == ["markdown", "toml"]


def test_model_of_streams_alone_is_refused_with_the_reason(tmp_path):
    (tmp_path / "a.txt").write_text("The river\n")
    for places in (["a.txt", "--output", "o/"], ["a.txt", "o/"]):
        command = "stream" if "--output" in places else "transform"
        paths = [word if word.startswith("--") else f"{tmp_path}/{word}" for word in places]
        done = headrace(command, *paths, "--model", EXAMPLES / "writer")
        assert done.code == 1
        assert "writer" in done.error
        assert "predict" in done.error


def score(command: str, source: str | Path, model: Path, output: Path, *more: str) -> list[dict]:
    """Return the predictions of a command as JSON."""
    places = [source, "--output", f"{output}/", "--output-format", "jsonl"]
    if command == "transform":
        places = [source, f"{output}/", "--accept", "jsonl"]
    done = headrace(command, *places, "--model", model, *more)
    assert done.code == 0, done.err
    files = sorted(p for p in output.iterdir() if p.is_file() and p.name != "_report.json")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


# Served


@example("sentence-embedding")
def test_sentences_are_where_the_full_network_puts_them(served):
    """The reference is all-MiniLM-L6-v2 in float32, as transformers computes it (mean over tokens,
    length 1).
    """
    vectors = served.infer("text", "BYTES", SENTENCES)["embedding"]
    cosines = (vectors * np.load(REFERENCE)).sum(axis=1)
    assert cosines.min() > 0.999
    near = vectors @ vectors.T
    assert min(near[0, 1], near[2, 3]) > 0.35
    assert near[:2, 2:].max() < 0.05


@example("sentence-embedding")
def test_batch_padding_changes_no_sentence(served):
    """A batch is padded to its longest sentence; the padding must not change an embedding."""
    together = served.infer("text", "BYTES", [SENTENCES[0], SENTENCES[3] * 10])["embedding"][0]
    alone = served.infer("text", "BYTES", SENTENCES[:1])["embedding"][0]
    assert together @ alone > 0.999


@example("file-type")
def test_files_are_told_by_their_bytes(served):
    texts = {
        "python": Path(__file__).read_text(),
        "json": json.dumps({"rows": [{"a": i, "b": None} for i in range(30)]}, indent=1),
        "csv": "age,calls,spent\n" + "".join(f"{i},{i * 3},{i / 7:.2f}\n" for i in range(40)),
        "markdown": (ROOT / "README.md").read_text(),
        "toml": (ROOT / "pyproject.toml").read_text(),
    }
    outputs = served.infer("content", "BYTES", list(texts.values()))
    assert outputs["label"].tolist() == list(texts)
    assert outputs["score"].min() > 0.5


@example("file-type")
def test_bytes_that_are_no_text_travel_as_raw_tensors(served, tmp_path):
    """The files are the network's own weights and this interpreter; too short a file is refused
    with the reason.
    """
    weights = (Path(sys.prefix) / "share" / "textgenrnn" / "textgenrnn_weights.hdf5").read_bytes()
    contents = np.array([weights[:20_000], Path(sys.executable).read_bytes()[:20_000]], "S20000")
    np.save(tmp_path / "files.npy", contents)
    done = headrace(
        "infer", "file-type", "--input", tmp_path / "files.npy", "--binary", "--json", "--url", served.url
    )
    assert done.code == 0, done.err
    assert done.lines[0]["outputs"][0]["data"] == ["h5", "elf"]
    refused = headrace("infer", "file-type", "--text", "short", "--url", served.url)
    assert (refused.code, "5 bytes are too few to detect a kind" in refused.error) == (1, True)


@example("writer")
def test_it_writes_one_character_at_a_time(served):
    """Temperature 0 leaves nothing to chance: a wrong gate or transposed kernel would spell no word
    of this.
    """
    asked = {"text_input": "I don't know ", "max_tokens": 25, "temperature": 0}
    tokens = [event["text_output"] for event in served.events(**asked)]
    assert "".join(tokens) == GREEDY
    assert {len(t) for t in tokens} == {1}
    whole = headrace(
        "infer", "writer", "--text", "I don't know ", "--stream",
        "-P", "max_tokens=25", "-P", "temperature=0", "--url", served.url,
    )  # fmt: skip
    assert whole.out == GREEDY + "\n"


GREEDY = "what to do anything about"


@example("writer")
def test_a_seed_makes_it_write_the_same_again(served):
    def text(seed):
        events = served.events(text_input="The river ", max_tokens=12, seed=seed)
        return "".join(event["text_output"] for event in events)

    assert text(3) == text(3) != text(4)


@example("writer")
def test_characters_come_while_others_are_still_to_come(served):
    """The client reads the first event and leaves, long before a thousand characters are written."""
    events = served.events(text_input="The ", max_tokens=1000, seed=1)
    assert len(next(events)["text_output"]) == 1
    events.close()
    again = next(served.events(text_input="The ", max_tokens=1, seed=1))
    assert again["model_name"] == "writer"
