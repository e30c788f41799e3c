"""The systemd unit: its keys, its hardening, its time limits, and its command as a real process."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.app.worker_pool import _CONTROLLER_S, processes_stop_s
from headrace.cli.main import COMMANDS, load_command
from headrace.jobs.client import Client
from headrace.jobs.worker import WorkerSettings
from headrace.server.exit_deadline import INTERPRETER_S
from integration.jobs_process import MODEL, CommandProcess, wait_completed

FOLDER = Path(__file__).resolve().parent.parent.parent / "deploy" / "systemd"
UNIT = FOLDER / "headrace@.service"
EXAMPLE = FOLDER / "up.env"
SYSUSERS = FOLDER / "headrace.sysusers.conf"
PROGRAM = "/opt/headrace/bin/headrace"
INSTANCES = ("up", "serve", "work", "scale")
ANALYZE = shutil.which("systemd-analyze")
# Measured: 2.3 with systemd 252, 2.2 with 257. Each hardening setting that is lost adds 0.1 or more.
EXPOSURE_MAX = 2.3

needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="needs systemd-analyze (Debian: systemd)")


def values(key):
    """Return the values of a key of the unit, in order."""
    return re.findall(rf"^{key}=(.*)$", UNIT.read_text(), re.MULTILINE)


def variables(text):
    """Return the variables of an environment file."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def analyze(*words):
    return subprocess.run([ANALYZE, *words], capture_output=True, text=True, check=False)


def problems(folder, text, instance="up"):
    """Return the lines of `systemd-analyze verify` about a unit, whose program must exist."""
    file = folder / f"headrace@{instance}.service"
    file.write_text(text.replace(PROGRAM, sys.executable))
    done = analyze("verify", "--man=no", str(file))
    lines = [line for line in done.stderr.splitlines() if file.name in line]
    # Older versions of systemd, which ignore this key, run headrace as the unit's comment says.
    return [
        line for line in lines if not re.search(r"Unknown key( name)? 'DelegateSubgroup' in section", line)
    ]


@needs_systemd
@pytest.mark.parametrize("instance", INSTANCES)
def test_unit_is_valid(tmp_path, instance):
    assert PROGRAM in UNIT.read_text()
    assert problems(tmp_path, UNIT.read_text(), instance) == []
    assert instance in COMMANDS


@needs_systemd
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("RestartSec=", "RestartSecs="),
        ("Type=exec", "Type=executable"),
        ("OOMPolicy=continue", "OOMPolicy=proceed"),
        ("DelegateSubgroup=", "DelegateSubGroup="),
        ("SystemCallFilter=@system-service", "SystemCallFilter=@system-services"),
        ("[Install]", "[Instal]"),
        ("TimeoutStopSec=120", "TimeoutStopSec=120 parsecs"),
    ],
)
def test_misspelt_setting_is_found(tmp_path, old, new):
    text = UNIT.read_text()
    assert old in text
    assert problems(tmp_path, text.replace(old, new)) != []


@needs_systemd
def test_missing_program_is_found(tmp_path):
    text = UNIT.read_text().replace(f"ExecStart={PROGRAM}", f"ExecStart={tmp_path}/headrace")
    assert problems(tmp_path, text) != []


def exposure(folder, text):
    """Return the exposure level of a unit, from 0 to 10."""
    file = folder / "headrace@up.service"
    file.write_text(text)
    done = analyze("security", "--offline=true", "--no-pager", str(file))
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found, done.stderr
    return float(found.group(1))


@needs_systemd
def test_unit_is_hardened(tmp_path):
    assert exposure(tmp_path, UNIT.read_text()) <= EXPOSURE_MAX


@needs_systemd
@pytest.mark.parametrize(
    "key", ["CapabilityBoundingSet", "ProtectHome", "NoNewPrivileges", "SystemCallFilter"]
)
def test_lost_hardening_is_found(tmp_path, key):
    text = re.sub(rf"^{key}=.*\n", "", UNIT.read_text(), flags=re.MULTILINE)
    assert exposure(tmp_path, text) > EXPOSURE_MAX


def test_systemd_waits_longer_than_the_longest_drain():
    """headrace ends itself after a limit. SIGKILL before that would cut off the return of jobs."""
    (timeout_s,) = map(float, values("TimeoutStopSec"))
    assert timeout_s > processes_stop_s(WorkerSettings()) + _CONTROLLER_S + INTERPRETER_S
    assert values("KillMode") == ["mixed"]


def test_commands_share_a_folder_and_a_user():
    """`up` and `work` of one machine use one SQLite file, which is closed to other users."""
    assert values("StateDirectory") == ["headrace"]
    assert values("WorkingDirectory") == ["%S/headrace"]
    # A service that ends leaves the folder to the others.
    assert values("RuntimeDirectory") == ["headrace"]
    assert values("RuntimeDirectoryPreserve") == ["yes"]
    assert "XDG_RUNTIME_DIR=%t/headrace" in values("Environment")
    kind, user, _, _, home = shlex.split(SYSUSERS.read_text(), comments=True)
    assert (kind, home) == ("u", "/var/lib/headrace")
    assert values("User") == values("Group") == [user]


def test_settings_that_break_models_are_left_out():
    """Compilers at run time, GPUs, and control groups of model processes."""
    for key in (
        "MemoryDenyWriteExecute",
        "PrivateDevices",
        "DevicePolicy",
        "ProtectClock",
        "ProtectControlGroups",
    ):
        assert values(key) == []
    assert values("OOMPolicy") == ["continue"]


def unknown_variables(text):
    """Return the variables of a file that `headrace up` does not read, also those in comments."""
    command = load_command("up")
    names = {str(option.name).upper() for option in command.params if option.name != "models"}
    known = {"MODELS"} | {f"HEADRACE_{name}" for name in names} | {f"HEADRACE_UP_{name}" for name in names}
    found = re.findall(r"^(?:# )?([A-Z_]+)=", text, re.MULTILINE)
    assert len(found) > 10
    return [name for name in found if name not in known]


def test_variables_of_the_example_are_options():
    assert unknown_variables(EXAMPLE.read_text()) == []


@pytest.mark.parametrize("name", ["HEADRACE_UP_REST_PORT", "HEADRACE_LEDGER", "MODELS"])
def test_misspelt_variable_is_found(name):
    assert unknown_variables(EXAMPLE.read_text().replace(f"{name}=", f"{name}X=")) == [f"{name}X"]


@pytest.mark.slow
def test_command_of_the_unit_completes_a_job(tmp_path):
    """The program, arguments, variables and folder of headrace@up, as systemd expands them."""
    (tmp_path / "lib" / "headrace").mkdir(parents=True)
    model = tmp_path / "model.py"
    model.write_text(MODEL)
    example = variables(EXAMPLE.read_text())
    ports = {name: "0" for name in example if name.endswith("PORT")}
    assert len(ports) == 3
    specifiers = {
        "%i": "up",
        "%S": f"{tmp_path}/lib",
        "%C": f"{tmp_path}/cache",
        "%t": f"{tmp_path}/run",
    }

    def expand(text):
        return re.sub("%.", lambda match: specifiers[match.group()], text)

    environ = {
        **dict(expand(pair).split("=", 1) for pair in values("Environment")),
        **example,
        **ports,
        "MODELS": str(model),
    }
    (line,) = values("ExecStart")
    program, *words = expand(line).split()
    assert program == PROGRAM
    arguments = [part for word in words for part in (environ[word[1:]].split() if word[0] == "$" else [word])]
    (folder,) = map(expand, values("WorkingDirectory"))
    with CommandProcess(Path(folder), *arguments, environ=environ) as process:
        process.wait_until_ready()
        with Client(process.urls["jobs"]) as client:
            job = wait_completed(client, client.submit("model", {"x": [[3.0, 1.0]]}).id)
            (output,) = json.loads(client.result(job.id))["outputs"]
            assert output["data"] == [6.0]
        assert process.terminate() == 0
    assert (Path(folder) / "headrace-data" / "jobs.db").exists()
