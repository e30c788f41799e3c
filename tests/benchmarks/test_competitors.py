"""transform/competitors.py: whose interpreter is where, and whether a peer's output is right."""

import re
import sys

import competitors
import job_peers
import pytest
from ours import BrokenRunError

LIMIT = b"1.50000,2.00000,0.25\n-1.00000,3.00000,0.75\n"


@pytest.fixture
def written(tmp_path):
    """The limit's output, and a peer's folder with the given files."""

    def write(*texts):
        folder = tmp_path / "peer"
        folder.mkdir()
        for number, text in enumerate(texts):
            (folder / f"part-{number}").write_bytes(text)
        (tmp_path / "limit.csv").write_bytes(LIMIT)
        return folder, tmp_path / "limit.csv"

    return write


@pytest.mark.parametrize(
    "texts",
    [
        [LIMIT],
        [b"-1.0,3.0,0.75\n", b"1.5,2.0,0.2500001\n"],
    ],
)
def test_the_same_numbers_in_any_order_and_any_print_are_right(written, texts):
    competitors.check_scores(*written(*texts))


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ([b"1.5,2.0,0.25\n"], "came out instead of"),
        ([b"1.5,2.0,0.75\n", b"-1.0,3.0,0.25\n"], "other numbers"),
        ([b"1.5,2.0,0.26\n", b"-1.0,3.0,0.75\n"], "other numbers"),
        ([], "came out instead of"),
    ],
)
def test_a_lost_row_a_swapped_score_and_a_wrong_one_are_not(written, texts, why):
    with pytest.raises(BrokenRunError, match=why):
        competitors.check_scores(*written(*texts))


def test_a_peer_is_where_it_is_said_to_be_or_in_its_environment(tmp_path, monkeypatch):
    monkeypatch.setattr(competitors, "ENVIRONMENTS", tmp_path)
    python = tmp_path / "daft" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert competitors.interpreters([]) == {"daft": python}
    found = competitors.interpreters([f"ray={sys.executable}"])
    assert {name: str(path) for name, path in found.items()} == {"daft": str(python), "ray": sys.executable}


@pytest.mark.parametrize("given", ["spark=/bin/sh", "ray", "ray=/no/such/python"])
def test_a_peer_that_is_unknown_or_not_there_is_refused(given):
    with pytest.raises(ValueError, match="--peer"):
        competitors.interpreters([given])


def test_every_peer_has_its_script_and_its_environment():
    makefile = (competitors.BENCHMARKS.parent / "Makefile").read_text()
    found = [(competitors.PEERS_HERE, peer) for peer in competitors.PEERS]
    found += [(job_peers.PEERS_HERE, peer) for peer in job_peers.PEERS]
    for folder, peer in found:
        assert (folder / peer.script).is_file()
        assert f"PEER_{peer.name} := " in makefile


def test_what_the_environments_hold_is_pinned_exactly():
    root = competitors.BENCHMARKS.parent
    lines = (root / "constraints-peers.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", pin) for pin in pins)
    names = [pin.partition("==")[0] for pin in pins]
    assert names == sorted(set(names))
    wanted = re.findall(r"^PEER_[a-z]+ := (.+)$", (root / "Makefile").read_text(), re.MULTILINE)
    assert len(wanted) == len(competitors.PEERS) + len(job_peers.PEERS)
    packages = {re.sub(r"'|\[.*\]", "", name) for line in wanted for name in line.split()}
    assert packages | {"numpy", "onnxruntime", "psutil"} <= set(names)
