"""Runner of the tests with clients of other projects, each in an environment of its own.

    serve_for_clients.py NAME=PYTHON... [-- PYTEST_ARGUMENTS]

runs ``pytest tests/environments/clients/NAME`` with each PYTHON in turn. It starts ``headrace
serve`` on free ports, and a second server whose streams use Triton's dialect. The exit status is 0
if all tests passed. The clients' environments need pytest and the client, but not headrace.
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
"""pytest's exit status if no test is selected, which is no failure with a selection."""

DATATYPES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "BF16", "FP32", "FP64", "BYTES",
)  # fmt: skip


def write_models(folder: Path) -> None:
    """Write a models folder: echoes of all datatypes, two versions of one model, text, streams, and
    failures.
    """
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
    """Run a server of these models and yield its addresses by listener.

    SIGTERM must end it with status 0.
    """
    command = [sys.executable, "-m", "headrace", "serve", str(models), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        yield _addresses(process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            _, stderr = process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            _, stderr = process.communicate()
        sys.stderr.write(stderr)
    if process.returncode != 0:
        raise SystemExit(f"the server exited with status {process.returncode}")


def _addresses(process: "subprocess.Popen[str]") -> dict[str, str]:
    """Return the addresses in the server's output: a line ``LISTENER ADDRESS`` each, then
    ``ready``.
    """
    assert process.stderr is not None
    addresses: dict[str, str] = {}
    for line in process.stderr:
        if line.strip() == "ready":
            return addresses
        sys.stderr.write(line)
        listener, _, address = line.strip().partition(" ")
        addresses[listener] = address.strip()
    raise SystemExit(f"the server did not start: it exited with status {process.wait(READY_S)}")


def main(arguments: list[str]) -> int:
    """Run the tests of the named clients. Return 1 if any failed."""
    clients, rest = arguments, []
    if "--" in arguments:
        at = arguments.index("--")
        clients, rest = arguments[:at], arguments[at + 1 :]
    with ExitStack() as stack:
        models = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-clients-"))) / "models"
        write_models(models)
        options = ("--rest-port", "0", "--grpc-port", "0", "--no-metrics")
        first = stack.enter_context(served(models, *options))
        second = stack.enter_context(served(models, *options, "--no-rest", "--stream-dialect", "triton"))
        addresses = {"rest": first["rest"], "grpc": first["grpc"], "grpc_triton": second["grpc"]}
        environment = {**os.environ, "HEADRACE_CLIENTS": json.dumps(addresses)}
        environment.pop("PYTHONPATH", None)
        failed: list[str] = []
        for name, python in (pair.split("=", 1) for pair in clients):
            print(f"== {name}", flush=True)  # noqa: T201
            started = time.monotonic()
            command = [python, "-m", "pytest", f"--confcutdir={CLIENTS}", str(CLIENTS / name), *rest]
            code = subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode
            if code != 0 and not (code == NO_TESTS and rest):
                failed.append(name)
            print(f"== {name}: {time.monotonic() - started:.1f} s", flush=True)  # noqa: T201
    if failed:
        print(f"failed: {', '.join(failed)}", flush=True)  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
