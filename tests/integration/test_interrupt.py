"""Ctrl-C in a real process: work in progress is delivered, and ``--resume`` continues after it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from integration.command import contents

BATCHES = 60

# The model waits for the signal in its 21st call, so no test depends on speed.
MODEL = """
import os, sys, time
from headrace import Model, TensorSpec

class Signalled(Model):
    max_batch_rows = 10
    inputs = (TensorSpec("x", "FP32", (-1, 2)),)
    calls = 0

    def predict(self, x):
        self.calls += 1
        if self.calls == 21 and os.path.exists("armed"):
            os.rename("armed", "fired")
            print("READY", file=sys.stderr, flush=True)
            while not os.path.exists("go"):
                time.sleep(0.002)
        return x[:, 0] * 2
"""


def command(output: str, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "headrace", "stream", "in.csv", "--model", "model.py", "--output", output,
        "--part-bytes-max", "500", "--checkpoint-s", "0", *more,
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
    """Run the command and send SIGINT in its 21st call; the call ends once the first is noticed."""
    Path("armed").write_text("")
    with subprocess.Popen(
        command(output, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        log = read_until(process, "READY")
        process.send_signal(signal.SIGINT)
        log += read_until(process, "stopping after work in progress; press Ctrl-C again to stop at once")
        if signals == 2:
            process.send_signal(signal.SIGINT)
        else:
            Path("go").write_text("")
        out, err = process.communicate(timeout=30)
    return process.returncode, out, log + err


def read_until(process: subprocess.Popen[str], line: str) -> str:
    log = ""
    while not log.endswith(f"{line}\n"):
        more = process.stderr.readline()
        assert more, log
        log += more
    return log


def test_ctrl_c_drains_and_resuming_writes_the_undisturbed_bytes():
    undisturbed = subprocess.run(command("undisturbed"), capture_output=True, text=True, check=False)
    assert undisturbed.returncode == 3, undisturbed.stderr
    assert "\x1b" not in undisturbed.stdout + undisturbed.stderr  # no terminal: plain text

    code, out, err = interrupted("out", "--json")
    assert code == 130, err
    report = json.loads(out.splitlines()[-1])
    assert (report["event"], report["status"], report["exit_code"]) == ("report", "drained", 130)
    # All batches before the signal are in the ledger.
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
    # Only batches that the first process had not delivered were predicted.
    assert last["model_calls"] == BATCHES - report["model_calls"]
    assert contents(Path("out")) == contents(Path("undisturbed"))
    assert not list(Path("out/_headrace").glob("*checkpoint*"))


def test_second_ctrl_c_exits_at_once_and_loses_nothing():
    """The call in progress never returns, and the process exits nevertheless."""
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
