"""Models that lie in an object store."""

import pytest

from beam.support import plain, rows, write_model
from headrace.beam import ModelHandler
from headrace.beam.fetched import fetched
from headrace.core.errors import ConfigError, NotFoundError
from headrace.storage.resolve import Stores


@pytest.fixture(autouse=True)
def below(tmp_path, monkeypatch):
    """Where folders for models are made."""
    below = tmp_path / "fetched"
    below.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(below))
    return below


@pytest.fixture
def stores():
    with Stores() as stores:
        yield stores


def put(stores, uri, data):
    stores.for_uri(uri).put(uri, data)


def test_a_path_is_left_where_it_is():
    assert fetched("models/churn.onnx").spec == "models/churn.onnx"
    assert fetched("package.module:Class").folder is None


@pytest.mark.parametrize("chosen", ["", ":Plus"])
def test_a_file_comes_with_its_name_and_its_class(stores, chosen):
    put(stores, "memory://models/a/plus.py", b"code")
    found = fetched(f"memory://models/a/plus.py{chosen}", stores)
    assert found.spec == f"{found.folder / 'plus.py'}{chosen}"
    assert (found.folder / "plus.py").read_bytes() == b"code"


def test_a_folder_comes_with_all_that_is_in_it(stores):
    put(stores, "memory://models/bert/config.json", b"{}")
    put(stores, "memory://models/bert/weights/one.bin", b"1")
    found = fetched("memory://models/bert/", stores)
    assert found.spec == str(found.folder / "bert")
    assert (found.folder / "bert" / "weights" / "one.bin").read_bytes() == b"1"


def test_what_is_not_there_leaves_nothing_behind(stores, below):
    with pytest.raises(NotFoundError):
        fetched("memory://models/gone.onnx", stores)
    with pytest.raises(ConfigError, match="nothing below it"):
        fetched("memory://models/gone/", stores)
    assert list(below.iterdir()) == []


def test_the_files_go_with_the_model(tmp_path, below):
    spec = write_model(tmp_path)
    handler = ModelHandler(f"file://{spec}")
    assert handler.batch_elements_kwargs() == {"max_batch_size": 1024}
    loaded = handler.load_model()
    (result,) = handler.run_inference(rows(1), loaded)
    assert (plain(result), result.model_id) == ((1, 2), f"file://{spec}")
    assert len(list(below.iterdir())) == 1
    loaded.close()
    assert list(below.iterdir()) == []
    (tmp_path / "plus.py").write_text("no = ")
    with pytest.raises(Exception, match=r"plus\.py"):
        handler.load_model()
    assert list(below.iterdir()) == []
