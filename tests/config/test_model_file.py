"""``model.toml`` and models folders: contents and error messages."""

from contextlib import suppress
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.config.model_file import (
    MODEL_FILE,
    ModelsFolder,
    is_models_folder,
    read_definition,
)
from headrace.core.errors import ConfigError, HeadraceError, ModelNotFoundError
from headrace.engine.settings import ServeSettings

CODE = """
from headrace import Model
class M(Model):
    def __init__(self, factor=1): self.factor = factor
    def predict(self, x): return x * self.factor
"""


def write_model(folder: Path, text: str = 'model = "m.py:M"\n', code: str | None = CODE) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if code is not None:
        (folder / "m.py").write_text(code)
    (folder / MODEL_FILE).write_text(text)
    return folder / MODEL_FILE


def test_whole_file(tmp_path):
    path = write_model(
        tmp_path / "folder",
        'name = "churn"\nversion = 2\nmodel = "m.py:M"\n[options]\nfactor = 3\n'
        '[serve]\ninstances = 2\nisolation = "thread"\nmax_batch_rows = 64\nmax_batch_delay_ms = 5\n'
        "queue_rows_max = 2048\nstreams_max = 3\nwarm_up = false\n",
    )
    found = read_definition(path)
    assert (found.name, found.version) == ("churn", "2")
    assert found.make().factor == 3
    assert found.fingerprint
    assert found.settings == ServeSettings(2, "thread", 64, 5, 2048, 3, warm_up=False)


def test_settings_of_the_number_of_instances(tmp_path):
    text = "[serve]\ninstances_max = 4\n[scaling]\nbacklog_per_worker = 16\nscale_in_window_s = 60\n"
    found = read_definition(write_model(tmp_path / "m", text)).settings
    assert (found.instances, found.instances_max) == (1, 4)
    assert found.scaling == {"backlog_per_worker": 16, "scale_in_window_s": 60}


def test_process_settings(tmp_path):
    """TOML has no null: an unlimited time is infinite."""
    path = write_model(
        tmp_path / "m",
        "[serve]\ncall_timeout_s = 60\ncancel_grace_s = inf\n"
        'memory_bytes_max = "4GiB"\nprocesses_max = 64\n'
        'environ_pass = ["HF_HOME", "MODEL_CACHE"]\n',
    )
    assert read_definition(path).settings == ServeSettings(
        call_timeout_s=60,
        cancel_grace_s=inf,
        memory_bytes_max=2**32,
        processes_max=64,
        environ_pass=("HF_HOME", "MODEL_CACHE"),
    )


def test_defaults(tmp_path):
    found = read_definition(write_model(tmp_path / "churn"))
    assert (found.name, found.version, found.settings) == ("churn", "1", ServeSettings())


def test_only_model_file_is_the_default(tmp_path):
    assert read_definition(write_model(tmp_path / "a", "")).make().factor == 1
    (tmp_path / "a" / "other.py").write_text(CODE)
    with pytest.raises(ConfigError, match=r"the candidates are 'm\.py', 'other\.py'"):
        read_definition(tmp_path / "a" / MODEL_FILE)
    with pytest.raises(ConfigError, match="no file in its folder is a model"):
        read_definition(write_model(tmp_path / "b", "", code=None))


@for_each(
    ("text", "message"),
    [
        ("nonsense = 1", "unknown key 'nonsense'"),
        ("model = 1", "'model' must be text: a file or a class"),
        ('model = "none.onnx"', "does not exist"),
        ('name = ""', "'name' must be text without a slash"),
        ('name = "a/b"', "'name' must be text without a slash"),
        ("name = true", "'name' must be text"),
        ('version = "1/2"', "'version' must be text without a slash"),
        ("version = 1.5", "'version' must be text"),
        ("serve = 1", r"must be a table, as in \[serve\]"),
        ("options = []", r"must be a table, as in \[options\]"),
        (
            "[serve]\nthreads = 1",
            r"serve: unknown key 'threads'; the keys are instances, instances_max, isolation",
        ),
        ("[serve]\ninstances = 0", "serve.instances must be a whole number of 1 or more, not 0"),
        ("[serve]\ninstances = 1.5", "instances must be a whole number of 1 or more, not 1.5"),
        ("[serve]\ninstances = true", "instances must be a whole number"),
        ("[serve]\ninstances = 2024-01-01", "instances must be a whole number"),
        ('[serve]\nmax_batch_rows = "64"', "max_batch_rows must be a whole number"),
        ("[serve]\nmax_batch_delay_ms = -1", "max_batch_delay_ms must be a number of 0 or more"),
        ("[serve]\nmax_batch_delay_ms = nan", "max_batch_delay_ms must be a number of 0 or more"),
        ("[serve]\nwarm_up = 1", "warm_up must be true or false"),
        (
            '[serve]\nisolation = "box"',
            "serve.isolation must be one of auto, inline, thread, process, not 'box'",
        ),
        ("[serve]\nisolation = 1", "isolation must be one of auto, inline, thread, process, not 1"),
        ("[serve]\nmemory_bytes_max = 0", "memory_bytes_max must be a size in bytes of 1 or more"),
        ("[serve]\nprocesses_max = 1.5", "processes_max must be a whole number"),
        ("[serve]\ncancel_grace_s = -1", "cancel_grace_s must be a number of 0 or more"),
        ('[serve]\nenviron_pass = "HOME"', "environ_pass must be a list of texts"),
        ("[serve]\nenviron_pass = [1]", "environ_pass must be a list of texts"),
        ('[serve]\nenviron_pass = ["A=b"]', "environ_pass must hold names"),
        ("[scaling]\nworkers = 2", "scaling: unknown key 'workers'; the keys are backlog_per_worker"),
        ("[scaling]\nschedules = []", "scaling: unknown key 'schedules'"),
        ("[scaling]\ntolerance = 2", "scaling.tolerance must be a number from 0 to 1, not 2"),
        ("scaling = 1", r"must be a table, as in \[scaling\]"),
        ("= 1", "invalid TOML"),
        ("a = 1\na = 2", "invalid TOML"),
    ],
)
def test_error_names_the_file_and_the_key(tmp_path, text, message):
    path = write_model(tmp_path / "a", text)
    with pytest.raises(ConfigError, match=message) as raised:
        read_definition(path)
    assert str(path) in str(raised.value)


def test_unreadable_file_is_refused(tmp_path):
    path = write_model(tmp_path / "a")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_definition(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_definition(tmp_path / "none" / MODEL_FILE)


@given(st.text(max_size=80))
def test_any_text_gives_a_model_or_a_headrace_error(tmp_path_factory, text):
    path = write_model(tmp_path_factory.mktemp("any"))
    path.write_text(text, encoding="utf-8", errors="replace")
    with suppress(HeadraceError):
        assert read_definition(path).name


def test_sequence_limits(tmp_path):
    text = 'model = "m.py:M"\n[sequences]\nlive_max = 7\nidle_ms = 30_000.5\ninterleave = true\n'
    found = read_definition(write_model(tmp_path / "a", text))
    assert found.settings.sequences == {"live_max": 7, "idle_ms": 30_000.5, "interleave": True}
    for wrong in ("live_max = 0", "live = 3", 'idle_ms = "1 s"', "interleave = 1"):
        with pytest.raises(ConfigError, match=r"model.toml: sequences(\.|: unknown key)"):
            read_definition(write_model(tmp_path / "b", f'model = "m.py:M"\n[sequences]\n{wrong}\n'))


# Folders


def test_folder_with_models_and_versions(tmp_path):
    write_model(tmp_path / "one")
    write_model(tmp_path / "two" / "1")
    write_model(tmp_path / "two" / "2", 'model = "m.py:M"\nversion = "two"\n')
    write_model(tmp_path / ".hidden")
    (tmp_path / "nothing").mkdir()
    (tmp_path / "file").write_text("")
    found = [(d.name, d.version) for d in ModelsFolder(tmp_path).all()]
    assert found == [("one", "1"), ("two", "1"), ("two", "two")]
    assert [d.version for d in ModelsFolder(tmp_path).find("two")] == ["1", "two"]


def test_find_reads_the_folder_anew(tmp_path):
    write_model(tmp_path / "one")
    folder = ModelsFolder(tmp_path)
    with pytest.raises(ModelNotFoundError):
        folder.find("two")
    write_model(tmp_path / "somewhere", 'name = "two"\nmodel = "m.py:M"\n')
    assert [d.name for d in folder.find("two")] == ["two"]
    with pytest.raises(ModelNotFoundError):
        folder.find("somewhere")


@for_each("name", ["..", ".", "", "../one", "one/..", "one\0", "*"])
def test_find_refuses_paths(tmp_path, name):
    write_model(tmp_path / "models" / "one")
    write_model(tmp_path / "outside")
    with pytest.raises(ModelNotFoundError):
        ModelsFolder(tmp_path / "models").find(name)


def test_invalid_model_does_not_affect_others(tmp_path):
    ran = tmp_path / "ran"
    write_model(tmp_path / "good")
    write_model(tmp_path / "broken", "= nonsense")
    write_model(tmp_path / "loud", code=f"open({str(ran)!r}, 'w')\n{CODE}")
    folder = ModelsFolder(tmp_path)
    assert [d.name for d in folder.find("good")] == ["good"]
    assert not ran.exists(), "the code of other models is not run"
    with pytest.raises(ConfigError):
        folder.all()


def test_find_errors_hide_the_path_of_the_folder(tmp_path):
    write_model(tmp_path / "broken", "= nonsense")
    write_model(tmp_path / "lost", 'model = "none.onnx"')
    for name in ("broken", "lost"):
        with pytest.raises(ConfigError) as raised:
            ModelsFolder(tmp_path).find(name)
        assert f"{name}/{MODEL_FILE}" in str(raised.value)
        assert str(tmp_path) not in str(raised.value)


def test_missing_or_empty_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is not a folder"):
        ModelsFolder(tmp_path / "none")
    with pytest.raises(ConfigError, match="has no model"):
        ModelsFolder(tmp_path).all()


def test_is_models_folder(tmp_path):
    assert not is_models_folder(tmp_path)
    assert not is_models_folder(tmp_path / "none")
    write_model(tmp_path / "a" / "1")
    assert is_models_folder(tmp_path)
    assert is_models_folder(tmp_path / "a")
    assert is_models_folder(tmp_path / "a" / "1")
