"""The commands of the page of examples/sequences, run against a real server of all three models."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from servers.served import WAIT_S, serving

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "sequences"
SDIST = Path(sys.prefix) / "share" / "textgenrnn" / "textgenrnn-2.0.0.tar.gz"


def commands(section: str) -> list[str]:
    """Return the console blocks of a section of the page, without those that need a microphone."""
    text = (EXAMPLES / "README.md").read_text().partition(f"\n## {section}: ")[2].partition("\n## ")[0]
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    assert blocks
    return [re.sub(r"^arecord .*\n", "", block, flags=re.MULTILINE) for block in blocks]


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """Run the commands and return their output."""
    models = tmp_path_factory.mktemp("models") / "sequences"
    shutil.copytree(EXAMPLES, models, ignore=shutil.ignore_patterns("*.npz", "__pycache__"))
    get_weights = [sys.executable, models / "characters" / "get_weights.py", "--sdist", SDIST]
    subprocess.run(get_weights, check=True, timeout=WAIT_S, capture_output=True)
    with serving(models) as where:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environ = {**os.environ, "PATH": path, "HEADRACE_URL": where.rest}

        def run(block: str) -> str:
            block = block.replace("localhost:8080", where.rest.removeprefix("http://"))
            block = block.replace("listen.py", f"listen.py --url {where.rest}")
            block = block.replace(".venv/", f"{sys.prefix}/")
            return subprocess.run(
                ["bash", "-ec", block],
                cwd=ROOT,
                env=environ,
                check=True,
                text=True,
                stdout=subprocess.PIPE,
                timeout=WAIT_S,
            ).stdout

        yield run


def test_running_sum(typed):
    asked, streamed = map(typed, commands("running-sum"))
    answers = [json.loads(line) for line in asked.splitlines()]
    assert [a["outputs"][0]["data"] for a in answers] == [[2], [6], [12]]
    assert {a["parameters"]["sequence_id"] for a in answers} == {"mine"}
    events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: ")]
    assert [e["outputs"][0]["data"] for e in events] == [[3]] * 6


def test_vad(typed):
    """The recording is ten seconds of speech with pauses."""
    (said,) = map(typed, commands("vad"))
    times = [(float(a), float(b)) for a, b in re.findall(r"speech from +([\d.]+) s to +([\d.]+) s", said)]
    assert len(times) > 3
    assert all(0 <= begun < ended <= 10 for begun, ended in times)
    assert 3 < sum(ended - begun for begun, ended in times) < 8
    first, second = (line for line in said.splitlines() if "█" in line)
    assert first.startswith("   0.0 s  ▁")
    assert (second[:10], len(first)) == ("   6.4 s  ", 60)


def test_characters(typed):
    (said,) = map(typed, commands("characters"))
    river, dog, more = said.splitlines()
    assert (len(river), len(dog)) == (80, 20)
    assert 0 < len(more) <= 80
    asked = "headrace infer characters --text 'My dog ' --stream -P max_characters=100 -P seed=7"
    assert typed(asked) == f"{dog}{more}\n"
