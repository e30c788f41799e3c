"""process_tree.py: what a command, and what it starts, used."""

import sys

from process_tree import tree_cpu_s, tree_memory_mb, watch

WITH_CHILD = """
import subprocess, sys
print("out")
print("err", file=sys.stderr)
hold = "x = bytearray(%d << 20); print(len(x), flush=True); sys.stdin.read(1)"
child = subprocess.Popen([sys.executable, "-c", "import sys; " + hold % 64], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
import time
ended = time.monotonic() + 0.5
while time.monotonic() < ended:
    pass
child.communicate()
sys.exit(3)
"""


def test_watching_sees_output_exit_code_and_what_children_hold():
    seen = watch([sys.executable, "-c", WITH_CHILD])
    assert (seen.output, seen.errors, seen.exit_code) == ("out\n", "err\n", 3)
    assert seen.peak_mb >= 64
    assert seen.wall_s >= 0.5
    # Half a second of turning; a machine with other work gives less of it.
    assert 0.05 < seen.cpu_s < 10


def test_a_tree_that_has_gone_used_nothing():
    gone = watch([sys.executable, "-c", "import os; print(os.getpid())"])
    assert tree_cpu_s(int(gone.output)) == 0
    assert tree_memory_mb(int(gone.output)) == 0


def test_this_tree_uses_something():
    assert tree_cpu_s() > 0
    assert tree_memory_mb() > 1
