"""Batch transforms: objects are split into tasks, scored, and assembled into one output per object."""
