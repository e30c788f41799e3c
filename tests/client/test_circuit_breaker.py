"""The circuit breaker and its phases."""

from headrace.client.retry import Admission, CircuitBreaker


def opened(failures_max: int = 3) -> CircuitBreaker:
    circuit = CircuitBreaker(failures_max=failures_max, cool_down_s=1.0, cool_down_max_s=4.0)
    for n in range(failures_max):
        circuit.record_failure(float(n), f"failure {n}")
    return circuit


def test_circuit_stays_closed_below_the_limit_and_success_resets_the_count():
    circuit = CircuitBreaker(failures_max=3)
    for _ in range(5):
        circuit.record_failure(0.0, "x")
        circuit.record_failure(0.0, "x")
        circuit.record_success()
    assert circuit.state.phase == "closed"
    assert circuit.admit(0.0) == Admission(allowed=True)


def test_consecutive_failures_open_the_circuit_and_state_has_the_start():
    state = opened().state
    assert (state.phase, state.failures, state.since_s, state.last_error, state.opened) == (
        "open", 3, 0.0, "failure 2", 1,
    )  # fmt: skip


def test_cool_down_refuses_attempts_with_the_remaining_wait():
    assert opened().admit(2.25) == Admission(allowed=False, wait_s=0.75)


def test_one_probe_is_allowed_after_the_cool_down():
    circuit = opened()
    assert circuit.admit(3.0) == Admission(allowed=True, probe=True)
    assert circuit.admit(3.0) == Admission(allowed=False, wait_s=None)


def test_failed_probe_doubles_the_cool_down_up_to_its_limit():
    circuit, now, waits = opened(), 3.0, []
    for _ in range(4):
        assert circuit.admit(now).probe
        circuit.record_failure(now, "still", probe=True)
        waits.append(circuit.admit(now).wait_s)
        now += waits[-1]
    assert waits == [2.0, 4.0, 4.0, 4.0]


def test_successful_probe_closes_the_circuit_and_resets_the_cool_down():
    circuit = opened()
    circuit.admit(3.0)
    circuit.record_failure(3.0, "still", probe=True)
    circuit.admit(5.0)
    circuit.record_success()
    assert circuit.state.phase == "closed"
    assert circuit.state.since_s is None
    for _ in range(3):
        circuit.record_failure(10.0, "again")
    assert circuit.admit(10.0).wait_s == 1.0
    assert circuit.state.opened == 2


def test_late_results_keep_the_cool_down_and_a_late_success_closes():
    circuit = opened()
    circuit.record_failure(2.5, "late")
    assert circuit.admit(2.5).wait_s == 0.5
    circuit.record_success()
    assert circuit.admit(2.5).allowed


def test_released_probe_allows_another_probe():
    circuit = opened()
    assert circuit.admit(3.0).probe
    circuit.release_probe()
    assert circuit.admit(3.0).probe
