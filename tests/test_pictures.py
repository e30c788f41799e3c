"""The pictures of README.md are current, small, well-formed, and load nothing."""

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
PICTURES = sorted(IMAGES.glob("*"))
BYTES_MAX = 60_000
_NAMESPACE = 'xmlns="http://www.w3.org/2000/svg"'
_LOADED = re.compile(r"//[\w.]+|url\((?!#)|@import|<(?:script|image|foreignObject)")


def test_data_flow_is_what_its_script_draws():
    drawn = runpy.run_path(str(ROOT / "scripts" / "draw_data_flow.py"))["draw"]()
    assert (IMAGES / "data-flow.svg").read_text() == drawn


def test_recording_shows_a_killed_run_and_its_resumption():
    texts = [element.text for element in ET.parse(IMAGES / "stream.svg").iter() if element.text]
    command = "headrace stream day.tar.gz --model churn.py --header names --output scored/"
    shown = [text for text in texts if text in {command, f"{command} --resume", "Killed", "complete"}]
    assert shown == [command, "Killed", command, f"{command} --resume", "complete"]
    assert "4,000,000 = 3,999,999 out + 1 failed" in texts


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_pictures_are_small_and_self_contained(path):
    text = path.read_text()
    assert ET.fromstring(text).tag.endswith("svg")
    assert len(text.encode()) <= BYTES_MAX
    assert _LOADED.findall(text.replace(_NAMESPACE, "")) == []


def test_readme_shows_every_picture_with_a_text():
    """Absolute addresses, because package indexes show README.md without the repository."""
    address = "https://raw.githubusercontent.com/headrace/headrace/main/docs/images/"
    shown = dict(
        re.findall(
            rf"^!\[(.+)\]\({re.escape(address)}(.+)\)$", (ROOT / "README.md").read_text(), re.MULTILINE
        )
    )
    assert sorted(shown.values()) == [path.name for path in PICTURES]
    assert all(len(text) > 40 for text in shown)
