"""One real server, asked by the clients of other projects, each from an environment of its own.

    serve_for_clients.py NAME=PYTHON...

runs ``pytest tests/environments/clients/NAME`` with every PYTHON in turn, against one ``headrace serve`` process on free ports
(and a second one whose streams speak Triton's dialect), and ends with 0 when all passed. What follows ``--`` goes to pytest.
The clients' environments need pytest, the client, and nothing of headrace.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CLIENTS = HERE / "clients"
READY_S = 60
STOP_S = 30
NO_TESTS = 5
"""What pytest ends with where none was chosen, which is nobody's failure when the caller chose."""

DATATYPES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "BF16", "FP32", "FP64", "BYTES",
)  # fmt: skip


def write_models(folder: Path) -> None:
    """A models folder: an echo of every datatype, two versions of one model, text, streams, and what fails."""
    for datatype in DATATYPES:
        _write(folder / f"echo_{datatype}", f'model = "models.py:Echo"\n[options]\ndatatype = "{datatype}"\n')
    for version in ("1", "2"):
        _write(folder / "sum" / version, 'model = "models.py:Sum"\n')
    for name, kind in (
        ("upper", "Upper"),
        ("words", "Words"),
        ("held", "Held"),
        ("fails", "Fails"),
        ("spare", "Sum"),
        ("running", "RunningSum"),
    ):
        _write(folder / name, f'model = "models.py:{kind}"\n')


def _write(folder: Path, toml: str) -> None:
    folder.mkdir(parents=True)
    (folder / "model.toml").write_text(toml)
    shutil.copy(CLIENTS / "models.py", folder)


@contextmanager
def served(models: Path, *options: str) -> Iterator[dict[str, str]]:
    """A server of these models: its addresses by door. SIGTERM ends it, and it must end well."""
    command = [sys.executable, "-m", "headrace", "serve", str(models), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        yield _addresses(process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            _, said = process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            _, said = process.communicate()
        sys.stderr.write(said)
    if process.returncode != 0:
        raise SystemExit(f"the server ended with {process.returncode}")


def _addresses(process: "subprocess.Popen[str]") -> dict[str, str]:
    """What the server says as it starts: a line ``DOOR ADDRESS`` for each door, then ``ready``."""
    assert process.stderr is not None
    addresses: dict[str, str] = {}
    for line in process.stderr:
        if line.strip() == "ready":
            return addresses
        sys.stderr.write(line)
        door, _, address = line.strip().partition(" ")
        addresses[door] = address.strip()
    raise SystemExit(f"the server did not start: it ended with {process.wait(READY_S)}")


def main(arguments: list[str]) -> int:
    """Run the tests of every client that is named; 1 when any failed."""
    named, rest = arguments, []
    if "--" in arguments:
        at = arguments.index("--")
        named, rest = arguments[:at], arguments[at + 1 :]
    with ExitStack() as stack:
        models = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-clients-"))) / "models"
        write_models(models)
        free = ("--rest-port", "0", "--grpc-port", "0", "--no-metrics")
        one = stack.enter_context(served(models, *free))
        other = stack.enter_context(served(models, *free, "--no-rest", "--stream-dialect", "triton"))
        told = {"rest": one["rest"], "grpc": one["grpc"], "grpc_triton": other["grpc"]}
        environment = {**os.environ, "HEADRACE_CLIENTS": json.dumps(told)}
        environment.pop("PYTHONPATH", None)
        failed: list[str] = []
        for name, python in (pair.split("=", 1) for pair in named):
            print(f"== {name}", flush=True)  # noqa: T201
            began = time.monotonic()
            command = [python, "-m", "pytest", f"--confcutdir={CLIENTS}", str(CLIENTS / name), *rest]
            code = subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode
            if code != 0 and not (code == NO_TESTS and rest):
                failed.append(name)
            print(f"== {name}: {time.monotonic() - began:.1f} s", flush=True)  # noqa: T201
    if failed:
        print(f"failed: {', '.join(failed)}", flush=True)  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
