"""The process of a pipeline. test_beam.py has real pipelines."""

import os
import signal
from multiprocessing.connection import wait

import pytest

from headrace.runners import beam as module
from headrace.runners.beam import PipelineOrder, PipelineProcess

pytestmark = pytest.mark.slow
ORDER = PipelineOrder(
    opener=os.getcwd,  # pyright: ignore[reportArgumentType] - never called
    pipeline="p",
    region=None,
    assignments=[],
    options=[],
    direct=True,
)
BEGIN = """
import os, pickle, subprocess, sys
from multiprocessing.connection import Connection
from headrace.runners.messages import send
connection = Connection(int(sys.argv[1]))
order = pickle.loads(connection.recv_bytes())
"""
PRINTS_MUCH = f"""{BEGIN}
for number in range(40_000):
    print("line", number, file=sys.stderr)
print("the end is near")
sys.stdout.flush()
send(connection, {{"failed": order.pipeline}})
print("the end")
"""
LEAVES_CHILD = f"""{BEGIN}
left = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
print("left", left.pid, flush=True)
send(connection, {{"ended": "DONE"}})
"""
DIES = f"{BEGIN}\nos.kill(os.getpid(), 9)"


@pytest.fixture
def started(monkeypatch):
    def start(program: str) -> PipelineProcess:
        monkeypatch.setattr(module, "_START", program)
        return PipelineProcess(ORDER)

    return start


def test_end_of_the_output_is_retained(started):
    with started(PRINTS_MUCH) as process:
        assert wait([process.connection], 60)
        assert process.receive() == {"failed": "p"}
        assert process.output_tail() == "line 39999\nthe end is near\nthe end"
        assert len(process._output) <= module._OUTPUT_BYTES_MAX
    assert not process._collector.is_alive()


def test_orphaned_child_is_not_waited_for(started, monkeypatch):
    """Such as a server of Beam that keeps the standard error open."""
    monkeypatch.setattr(module, "_OUTPUT_END_S", 0.1)
    with started(LEAVES_CHILD) as process:
        assert wait([process.connection], 60)
        assert process.receive() == {"ended": "DONE"}
        name, pid = process.output_tail().split()
    try:
        assert name == "left"
        assert process._collector.is_alive()
    finally:
        os.kill(int(pid), signal.SIGKILL)
    process._collector.join(30)
    assert not process._collector.is_alive()


def test_death_of_the_process_is_a_message(started):
    with started(DIES) as process:
        assert wait([process.connection], 60)
        assert process.receive() == {"died": "the pipeline's own process ended with status -9"}
