"""Run the fault tests, and tell what the faults cost.

    python tests/faults [--full] [--json] [--output FILE] [NUMBER ...]

Exits with 1 unless every test passed, no job was lost, and none had two results.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parent.parent
sys.path.insert(0, str(TESTS))

from faults import report  # noqa: E402 - found beside this folder


def main() -> int:
    """The exit status."""
    asked = _arguments().parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-faults-") as folder:
        path = Path(folder, "lines")
        environ = {**os.environ, report.PATH: str(path)}
        if asked.full:
            environ["HEADRACE_FAULTS_FULL"] = "1"
        command = [
            sys.executable,
            "-m",
            "pytest",
            str(TESTS / "faults"),
            "--quiet",
            "-x" if asked.stop else "-ra",
        ]
        if asked.numbers:
            command += ["-k", " or ".join(f"test_fault_{number:02d}" for number in asked.numbers)]
        if asked.full:
            command += ["--timeout", "1800"]
        # What the tests say goes to standard error, so that the report stands alone.
        passed = (
            subprocess.run(command, env=environ, cwd=TESTS.parent, stdout=sys.stderr, check=False).returncode
            == 0
        )
        lines = report.read_lines(path)
    told = report.as_json(lines) if asked.json else report.as_table(lines)
    if asked.output:
        asked.output.write_text(f"{report.as_json(lines)}\n")
    print(told)
    return 0 if passed and report.holds(lines) else 1


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python tests/faults", description=__doc__.splitlines()[0])
    parser.add_argument(
        "numbers", nargs="*", type=int, help="of the fault list (docs/faults.md); all by default"
    )
    parser.add_argument("--full", action="store_true", help="larger counts: much longer")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    parser.add_argument("--output", type=Path, help="write it, as JSON, to this file too")
    parser.add_argument("--stop", action="store_true", help="at the first test that fails")
    return parser


if __name__ == "__main__":
    sys.exit(main())
