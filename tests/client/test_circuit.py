"""The circuit: opens after failures in a row, lets one probe go, closes on any success."""

from headrace.client.circuit import Admission, Circuit


def opened(failures_max: int = 3) -> Circuit:
    circuit = Circuit(failures_max=failures_max, cool_down_s=1.0, cool_down_max_s=4.0)
    for n in range(failures_max):
        circuit.failed(float(n), f"failure {n}")
    return circuit


def test_it_stays_closed_below_the_limit_and_a_success_counts_anew():
    circuit = Circuit(failures_max=3)
    for _ in range(5):
        circuit.failed(0.0, "x")
        circuit.failed(0.0, "x")
        circuit.succeeded()
    assert circuit.state.phase == "closed"
    assert circuit.admit(0.0) == Admission(go=True)


def test_failures_in_a_row_open_it_and_its_state_tells_since_when():
    state = opened().state
    assert (state.phase, state.failures, state.since_s, state.last_error, state.opened) == (
        "open", 3, 0.0, "failure 2", 1,
    )  # fmt: skip


def test_while_it_cools_down_nobody_goes_and_all_are_told_how_long():
    assert opened().admit(2.25) == Admission(go=False, wait_s=0.75)


def test_after_the_cool_down_one_probe_goes_and_the_others_wait_for_it():
    circuit = opened()
    assert circuit.admit(3.0) == Admission(go=True, probe=True)
    assert circuit.admit(3.0) == Admission(go=False, wait_s=None)


def test_a_failed_probe_doubles_the_cool_down_up_to_its_longest():
    circuit, now, waits = opened(), 3.0, []
    for _ in range(4):
        assert circuit.admit(now).probe
        circuit.failed(now, "still", probe=True)
        waits.append(circuit.admit(now).wait_s)
        now += waits[-1]
    assert waits == [2.0, 4.0, 4.0, 4.0]


def test_a_probe_that_succeeds_closes_it_and_the_next_cool_down_is_short_again():
    circuit = opened()
    circuit.admit(3.0)
    circuit.failed(3.0, "still", probe=True)
    circuit.admit(5.0)
    circuit.succeeded()
    assert circuit.state.phase == "closed"
    assert circuit.state.since_s is None
    for _ in range(3):
        circuit.failed(10.0, "again")
    assert circuit.admit(10.0).wait_s == 1.0
    assert circuit.state.opened == 2


def test_an_attempt_from_before_neither_prolongs_the_cool_down_nor_is_lost():
    circuit = opened()
    circuit.failed(2.5, "late")
    assert circuit.admit(2.5).wait_s == 0.5
    circuit.succeeded()
    assert circuit.admit(2.5).go


def test_an_abandoned_probe_leaves_its_place_to_the_next():
    circuit = opened()
    assert circuit.admit(3.0).probe
    circuit.abandoned()
    assert circuit.admit(3.0).probe
