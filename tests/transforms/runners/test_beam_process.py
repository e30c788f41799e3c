"""The process of a pipeline, as its run sees it. Pipelines of Beam's own are in test_beam.py."""

import os
import signal
import time
from multiprocessing.connection import wait

import pytest

from headrace.transforms.runners import beam_process
from headrace.transforms.runners.beam_process import PipelineOrder, PipelineProcess

ORDER = PipelineOrder(
    opener=os.getcwd,  # pyright: ignore[reportArgumentType] - none of these is asked
    pipeline="p",
    region=None,
    assignments=[],
    options=[],
    direct=True,
)
BEGIN = """
import os, pickle, subprocess, sys
from multiprocessing.connection import Connection
from headrace.transforms.runners.messages import send
connection = Connection(int(sys.argv[1]))
order = pickle.loads(connection.recv_bytes())
"""
SAYS_MUCH = f"""{BEGIN}
for number in range(40_000):
    print("line", number, file=sys.stderr)
print("the end is near")
sys.stdout.flush()
send(connection, {{"failed": order.pipeline}})
print("the end")
"""
LEAVES_SOMEBODY = f"""{BEGIN}
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print("left", left.pid, flush=True)
send(connection, {{"ended": "DONE"}})
"""
DIES = f"{BEGIN}\nos.kill(os.getpid(), 9)"


@pytest.fixture
def started(monkeypatch):
    def start(program: str) -> PipelineProcess:
        monkeypatch.setattr(beam_process, "_START", program)
        return PipelineProcess(ORDER)

    return start


def test_of_what_it_says_the_end_is_kept_and_no_more(started):
    with started(SAYS_MUCH) as process:
        assert wait([process.connection], 60)
        assert process.receive() == {"failed": "p"}
        assert process.last_words() == "line 39999\nthe end is near\nthe end"
        assert len(process._said) <= beam_process._SAID_MAX_BYTES
    assert not process._listener.is_alive()


def test_whom_it_leaves_behind_is_not_waited_for(started):
    """Such as a server of Beam's that holds its standard error."""
    began_s = time.monotonic()
    with started(LEAVES_SOMEBODY) as process:
        assert wait([process.connection], 60)
        assert process.receive() == {"ended": "DONE"}
        name, pid = process.last_words().split()
    try:
        assert name == "left"
        assert process._listener.is_alive()
        assert time.monotonic() - began_s < 50
    finally:
        os.kill(int(pid), signal.SIGKILL)
    process._listener.join(30)
    assert not process._listener.is_alive()


def test_one_that_dies_is_told_of(started):
    with started(DIES) as process:
        assert wait([process.connection], 60)
        assert process.receive() == {"died": "the pipeline's own process ended with status -9"}
