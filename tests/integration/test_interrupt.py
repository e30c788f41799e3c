"""Ctrl-C in a real process: what is under way is delivered, and ``--resume`` goes on from there."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from integration.command import contents

BATCHES = 60

# Asks for the signal at the 20th batch and then waits for it, so that no test depends on how fast anything is.
MODEL = """
import os, sys, time
from headrace import Model, TensorSpec

class Signalled(Model):
    max_batch_rows = 10
    inputs = (TensorSpec("x", "FP32", (-1, 2)),)
    calls = 0

    def predict(self, x):
        self.calls += 1
        if self.calls == 21 and os.path.exists("ask"):
            os.rename("ask", "asked")
            print("READY", file=sys.stderr, flush=True)
            while not os.path.exists("go"):
                time.sleep(0.002)
        return x[:, 0] * 2
"""


def command(output: str, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "headrace", "stream", "in.csv", "--model", "model.py", "--output", output,
        "--part-bytes", "500", "--checkpoint-s", "0", *more,
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    lines = [f"{i},1\n" for i in range(BATCHES * 10)]
    lines[7] = "oops,1\n"
    Path("in.csv").write_text("".join(lines))
    return tmp_path


def interrupted(output: str, *more: str, signals: int = 1) -> tuple[int, str, str]:
    """Run it, send SIGINT while it is in its 21st call, let the call end once the first is noticed."""
    Path("ask").write_text("")
    with subprocess.Popen(
        command(output, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        said = until(process, "READY")
        process.send_signal(signal.SIGINT)
        said += until(process, "stopping: what is under way is delivered; again to stop at once")
        if signals == 2:
            process.send_signal(signal.SIGINT)
        else:
            Path("go").write_text("")
        out, err = process.communicate(timeout=30)
    return process.returncode, out, said + err


def until(process: subprocess.Popen[str], line: str) -> str:
    said = ""
    while not said.endswith(f"{line}\n"):
        more = process.stderr.readline()
        assert more, said
        said += more
    return said


def test_ctrl_c_drains_and_resuming_ends_with_the_undisturbed_bytes():
    undisturbed = subprocess.run(command("undisturbed"), capture_output=True, text=True, check=False)
    assert undisturbed.returncode == 3, undisturbed.stderr
    assert "\x1b" not in undisturbed.stdout + undisturbed.stderr  # no terminal: plain text

    code, out, err = interrupted("out", "--json")
    assert code == 130, err
    report = json.loads(out.splitlines()[-1])
    assert (report["event"], report["status"], report["exit_code"]) == ("report", "drained", 130)
    # All batches before the signal are in the ledger, and not much more.
    assert 200 <= report["records_in"] < BATCHES * 10
    assert report["records_in"] == report["rows_out"] + report["rows_failed"]
    assert not Path("out/_headrace/report.json").exists()

    resumed = subprocess.run(
        command("out", "--resume", "--json"), capture_output=True, text=True, check=False
    )
    assert resumed.returncode == 3, resumed.stderr
    lines = [json.loads(line) for line in resumed.stdout.splitlines()]
    assert {line["event"] for line in lines[:-1]} <= {"progress"}
    last = lines[-1]
    assert (last["records_in"], last["rows_failed"], last["resumed"]) == (BATCHES * 10, 1, True)
    # Nothing was scored twice: only what the first process had not delivered.
    assert last["model_calls"] == BATCHES - report["model_calls"]
    assert contents(Path("out")) == contents(Path("undisturbed"))
    assert not list(Path("out/_headrace").glob("*checkpoint*"))


def test_a_second_ctrl_c_ends_at_once_and_costs_nothing():
    """The call in progress never returns, and the process goes all the same."""
    code, out, _ = interrupted("out", signals=2)
    assert (code, out) == (130, "")
    assert not list(Path("out").glob(".headrace-*"))
    Path("go").write_text("")
    resumed = subprocess.run(
        command("out", "--resume", "--json"), capture_output=True, text=True, check=False
    )
    assert resumed.returncode == 3, resumed.stderr
    report = json.loads(resumed.stdout.splitlines()[-1])
    assert (report["records_in"], report["resumed"]) == (BATCHES * 10, True)
    expected = b"".join(b"%.1f\n" % (2.0 * i) for i in range(BATCHES * 10) if i != 7)
    assert b"".join(v for k, v in contents(Path("out")).items() if k.endswith(".csv")) == expected
