"""Checkpoints of sequences: encoding of states, and stores that keep the last finished step."""
