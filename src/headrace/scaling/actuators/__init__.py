"""Actuators: the ways to start and end workers. `headrace.scaling.actuator` has the contract."""
