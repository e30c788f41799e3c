"""Checkpoints of sequences' states: how a state is written, and where it is kept, so that it outlives the process that made it."""
