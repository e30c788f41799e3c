"""process_tree.py: the usage of a command and its children."""

import sys

from process_tree import run_command, tree_cpu_s, tree_memory_mb

WITH_CHILD = """
import subprocess, sys
print("out")
print("err", file=sys.stderr)
hold = "x = bytearray(%d << 20); print(len(x), flush=True); sys.stdin.read(1)"
command = [sys.executable, "-c", "import sys; " + hold % 64]
child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
import time
ended = time.monotonic() + 0.5
while time.monotonic() < ended:
    pass
child.communicate()
sys.exit(3)
"""


def test_usage_covers_output_exit_code_and_children():
    seen = run_command([sys.executable, "-c", WITH_CHILD])
    assert (seen.output, seen.errors, seen.exit_code) == ("out\n", "err\n", 3)
    assert seen.peak_mb >= 64
    assert seen.wall_s >= 0.5
    # The child computes for half a second; a busy machine gives it less.
    assert 0.05 < seen.cpu_s < 10


def test_ended_tree_uses_nothing():
    gone = run_command([sys.executable, "-c", "import os; print(os.getpid())"])
    assert tree_cpu_s(int(gone.output)) == 0
    assert tree_memory_mb(int(gone.output)) == 0


def test_this_tree_uses_something():
    assert tree_cpu_s() > 0
    assert tree_memory_mb() > 1
