"""What is said of a process's end: one cause, and words that help."""

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InstanceLostError
from headrace.engine.death import Death, Killing, OutOfMemory, death_of

TOO_LONG = Killing("timeout", "it took too long")
NO, UNKNOWN, PROBABLY, YES = OutOfMemory.NO, OutOfMemory.UNKNOWN, OutOfMemory.PROBABLY, OutOfMemory.YES


@pytest.mark.parametrize(
    ("status", "killing", "memory", "cause", "says"),
    [
        (0, None, NO, "exit", "ended by itself, with status 0"),
        (3, TOO_LONG, YES, "exit", "ended by itself, with status 3"),
        (-signal.SIGSEGV, None, NO, "crash", r"crashed \(SIGSEGV\)"),
        (-signal.SIGSEGV, TOO_LONG, YES, "crash", "crashed"),
        (-signal.SIGABRT, None, NO, "crash", "gave itself up"),
        (-signal.SIGKILL, TOO_LONG, NO, "timeout", "^it took too long$"),
        (-signal.SIGKILL, TOO_LONG, PROBABLY, "timeout", "^it took too long$"),
        (-signal.SIGKILL, None, YES, "oom", r"by the system since memory ran out: fewer rows"),
        (-signal.SIGKILL, None, PROBABLY, "oom", "probably by the system"),
        (-signal.SIGKILL, None, NO, "killed", "by somebody else$"),
        (-signal.SIGKILL, None, UNKNOWN, "killed", "by somebody else, or by the system"),
        (-signal.SIGTERM, None, YES, "killed", r"\(SIGTERM\) by somebody else$"),
        (-(signal.SIGRTMIN + 3), None, NO, "killed", r"signal 37"),
    ],
)
def test_each_end_has_its_cause(status, killing, memory, cause, says):
    """What this side did counts where it died of it: it may have ended just before."""
    death = death_of(status, killing, memory)
    assert death.cause == cause
    with pytest.raises(InstanceLostError, match=says.removeprefix("^")) as caught:
        raise death.error("m")
    assert (caught.value.cause, caught.value.why) == (cause, death.why)


def test_a_bound_on_memory_is_named():
    assert "300 bytes (memory_bytes_max)" in death_of(-signal.SIGKILL, None, YES, 300).why


@given(st.integers(-64, 255), st.sampled_from([None, TOO_LONG]), st.sampled_from(OutOfMemory))
def test_facts_are_of_one_kind(status, killing, memory):
    """An exit code, or a signal's name."""
    death = death_of(status, killing, memory)
    assert isinstance(death, Death)
    assert (death.exit_code is None) == (status < 0)
    assert (death.signal is None) == (status >= 0)
    assert death.why
