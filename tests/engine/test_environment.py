"""What a process of a model sees of the environment."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.environment import passed

_ENVIRON = {
    "AWS_SECRET_ACCESS_KEY": "s",
    "HEADRACE_API_KEYS": "k",
    "HOME": "/h",
    "LC_ALL": "C",
    "MODEL_CACHE": "/c",
    "PATH": "/bin",
    "PYTHONHASHSEED": "0",
}


def test_all_unless_asked_otherwise():
    assert passed(_ENVIRON, None) == _ENVIRON


def test_names_and_what_python_needs():
    """A name that is not there is none."""
    assert passed(_ENVIRON, ("MODEL_CACHE", "ABSENT")).keys() == {
        "HOME",
        "LC_ALL",
        "MODEL_CACHE",
        "PATH",
        "PYTHONHASHSEED",
    }


@given(st.dictionaries(st.text(), st.text()), st.sets(st.text()))
def test_nothing_is_made_up_and_nothing_changed(environ, names):
    found = passed(environ, names)
    assert found.items() <= environ.items()
    assert {name: value for name, value in environ.items() if name in names}.items() <= found.items()
