"""A module that a model calls."""


def fail_far_away(x):
    return x.shape["a"]
