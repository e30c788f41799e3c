"""Run the fault tests and report the costs of the faults.

    python tests/faults [--full] [--json] [--output FILE] [NUMBER ...]

The exit status is 1 unless every test passed, no job was lost, and no job had two results.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parent.parent
sys.path.insert(0, str(TESTS))

from faults import report  # noqa: E402 - the folder of this file must be on the path first


def main() -> int:
    """Return the exit status."""
    arguments = _parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-faults-") as folder:
        path = Path(folder, "lines")
        # Standard output is the report's alone.
        passed = (
            subprocess.run(
                _pytest_command(arguments),
                env={**os.environ, report.PATH: str(path)},
                cwd=TESTS.parent,
                stdout=sys.stderr,
                check=False,
            ).returncode
            == 0
        )
        lines = report.read_lines(path)
    if arguments.output:
        arguments.output.write_text(f"{report.as_json(lines)}\n")
    print(report.as_json(lines) if arguments.json else report.as_table(lines))
    return 0 if passed and report.holds(lines) else 1


def _pytest_command(arguments: argparse.Namespace) -> list[str]:
    command = [sys.executable, "-m", "pytest", str(TESTS / "faults"), "--quiet", "-ra"]
    if arguments.stop:
        command += ["-x"]
    if arguments.numbers:
        command += ["-k", " or ".join(f"test_fault_{number:02d}" for number in arguments.numbers)]
    if arguments.full:
        command += ["--level", "soak", "--timeout", "1800"]
    return command


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python tests/faults", description=__doc__.splitlines()[0])
    parser.add_argument(
        "numbers", nargs="*", type=int, help="Numbers of the fault list (docs/faults.md). Default: all."
    )
    parser.add_argument("--full", action="store_true", help="Amounts of `make soak`: hours.")
    parser.add_argument("--json", action="store_true", help="Report as JSON.")
    parser.add_argument("--output", type=Path, help="File that also gets the report, as JSON.")
    parser.add_argument("--stop", action="store_true", help="Stop at the first failed test.")
    return parser


if __name__ == "__main__":
    sys.exit(main())
