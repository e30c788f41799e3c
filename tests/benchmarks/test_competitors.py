"""transform/competitors.py: the interpreters of the peers, and the check of their outputs."""

import re
import sys

import competitors
import job_peers
import pytest
from headrace_runs import BrokenRunError

LIMIT = b"1.50000,2.00000,0.25\n-1.00000,3.00000,0.75\n"


@pytest.fixture
def written(tmp_path):
    """Return a function that writes the limit's output and a peer's folder of files."""

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
def test_equal_numbers_in_any_order_and_format_pass(written, texts):
    competitors.check_scores(*written(*texts))


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ([b"1.5,2.0,0.25\n"], "the output has the shape"),
        ([b"1.5,2.0,0.75\n", b"-1.0,3.0,0.25\n"], "the numbers differ"),
        ([b"1.5,2.0,0.26\n", b"-1.0,3.0,0.75\n"], "the numbers differ"),
        ([], "the output has the shape"),
    ],
)
def test_lost_rows_and_wrong_scores_fail(written, texts, why):
    with pytest.raises(BrokenRunError, match=why):
        competitors.check_scores(*written(*texts))


def test_interpreter_is_the_option_or_the_environment_of_the_peer(tmp_path, monkeypatch):
    monkeypatch.setattr(competitors, "ENVIRONMENTS", tmp_path)
    python = tmp_path / "daft" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert competitors.interpreters([]) == {"daft": python}
    found = competitors.interpreters([f"ray={sys.executable}"])
    assert {name: str(path) for name, path in found.items()} == {"daft": str(python), "ray": sys.executable}


@pytest.mark.parametrize("option", ["spark=/bin/sh", "ray", "ray=/no/such/python"])
def test_unknown_or_missing_peer_is_refused(option):
    with pytest.raises(ValueError, match="--peer"):
        competitors.interpreters([option])


def test_every_peer_has_a_script_and_an_environment():
    makefile = (competitors.BENCHMARKS.parent / "Makefile").read_text()
    found = [(competitors.PEERS_HERE, peer) for peer in competitors.PEERS]
    found += [(job_peers.PEERS_HERE, peer) for peer in job_peers.PEERS]
    for folder, peer in found:
        assert (folder / peer.script).is_file()
        assert f"PEER_{peer.name} := " in makefile


def test_packages_of_the_environments_are_pinned_exactly():
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
