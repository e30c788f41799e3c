"""serving/soak.py: half a million requests leave the server's memory as it was."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "serving" / "soak.py"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_memory_stays_constant_over_500_000_requests():
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
