"""Batching decisions: when a batch closes, which rows of a failed batch are at fault, which step runs next.

Every class here is pure: it takes the current time as `now`, never waits, and returns a decision.
"""
