"""Tables of cases that run within one test."""

import functools
import inspect


def for_each(names, cases):
    """Run the decorated test once per case, under one test id.

    The arguments are those of `pytest.mark.parametrize`. Use it for cases of microseconds. The
    exception of a failing case gets a note with the arguments.
    """
    keys = (names,) if isinstance(names, str) else names

    def decorate(test):
        @functools.wraps(test)
        def run(**others):
            for case in cases:
                values = (case,) if isinstance(names, str) else case
                arguments = dict(zip(keys, values, strict=True))
                try:
                    test(**others, **arguments)
                except BaseException as error:
                    error.add_note(f"case: {arguments!r}")
                    raise

        signature = inspect.signature(test)
        parameters = [p for p in signature.parameters.values() if p.name not in keys]
        run.__signature__ = signature.replace(parameters=parameters)
        del run.__wrapped__
        return run

    return decorate
