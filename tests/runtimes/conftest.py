"""Selection of the runtimes' tests: ``make test`` does not import large frameworks."""

SLOW_MODULES = {
    "test_frames.py",
    "test_huggingface.py",
    "test_mlflow.py",
    "test_sklearn.py",
    "test_torch.py",
}
"""Modules of slow tests that import pandas, scikit-learn, mlflow, torch or transformers."""


def pytest_ignore_collect(collection_path, config):
    """Skip the import of modules without a test of the level."""
    is_left_out = config.getoption("--level") == "test" and collection_path.name in SLOW_MODULES
    return True if is_left_out else None
