"""Fixtures of the tests of the built wheel."""

import pytest

from extras.environments import EnvironmentMaker, build_wheel


@pytest.fixture(scope="session")
def environments(tmp_path_factory):
    """Return a function: the environment that holds the wheel and the packages of these extras alone."""
    folder = tmp_path_factory.mktemp("extras")
    return EnvironmentMaker(build_wheel(folder), folder / "environments").make


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a model of two numbers and some rows."""
    (tmp_path / "model.py").write_text(
        "from headrace import Model, TensorSpec\n\n\n"
        "class Sum(Model):\n"
        "    inputs = (TensorSpec('x', 'FP32', (-1, 2)),)\n\n"
        "    def predict(self, x):\n"
        "        return x.sum(axis=1)\n"
    )
    (tmp_path / "rows.csv").write_text("1,2\n3,4\n")
    return tmp_path
