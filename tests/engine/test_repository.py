"""Models by name and version: look-up, readiness, and changes during requests."""

import threading

import numpy as np
import pytest

from engine.support import WAIT_S, OverlapDetector, request
from headrace.core import Model
from headrace.core.errors import ConfigError, ModelLoadError, ModelNotFoundError, ModelNotReadyError
from headrace.core.statistics import InstanceStatus, ModelState
from headrace.engine.repository import ModelDefinition, ModelRepository
from headrace.engine.settings import ServeSettings
from headrace.testing import EchoModel, HeldModel

SETTINGS = ServeSettings(max_batch_delay_ms=0, isolation="thread")


class Broken(Model):
    def load(self):
        raise FileNotFoundError("/secret/weights.bin")

    def predict(self, x):
        return x


class Times(Model):
    def __init__(self, factor: float):
        self.factor = factor
        self.closed = False

    def predict(self, x):
        return x * self.factor

    def close(self):
        self.closed = True


def definition(name: str, version: str = "1", make=EchoModel) -> ModelDefinition:
    return ModelDefinition(name, version, make, settings=SETTINGS)


@pytest.fixture
def opened():
    """Yield a factory of repositories that are stopped in the end."""
    made: list[ModelRepository] = []

    def make(*definitions, start=True, **more):
        repository = ModelRepository(definitions, **more)
        made.append(repository)
        if start:
            repository.start()
        return repository

    yield make
    for repository in made:
        repository.stop(drain=False)


def answer(repository, name, version="", value=1.0):
    sent = request(np.array([value], np.float32))
    return repository.engine(name, version).submit(sent).result(WAIT_S)["output"].tolist()[0]


def states(repository):
    return {(e.name, e.version): (e.state, e.reason) for e in repository.index()}


def test_duplicate_version_is_refused():
    with pytest.raises(ConfigError, match="model a version 1 is defined twice"):
        ModelRepository([definition("a"), definition("a")])


def test_models_in_threads_load_one_after_another(opened):
    detector = OverlapDetector()
    opened(*(definition(name, make=detector.model()) for name in "abc"))
    assert detector.peak == 1


def test_numeric_versions_are_newest(opened):
    repository = opened(*(definition("a", v) for v in ("10", "9", "beta", "2")))
    assert repository.versions("a") == ("beta", "2", "9", "10")
    assert repository.engine("a").version == "10"
    assert repository.engine("a", "beta").version == "beta"


def test_unknown_model_is_not_found(opened):
    repository = opened(definition("a", "1"), definition("a", "2"))
    for ask in (
        repository.engine,
        repository.model_ready,
        repository.versions,
        repository.statistics,
        repository.unload,
        repository.load,
    ):
        with pytest.raises(ModelNotFoundError, match="no model of this name"):
            ask("b")
    for ask in (repository.engine, repository.model_ready, repository.statistics):
        with pytest.raises(ModelNotFoundError, match="no version '3' \\(it has 1, 2\\)"):
            ask("a", "3")


def test_not_ready_before_start_and_after_stop(opened):
    repository = opened(definition("a"), start=False)
    assert not repository.ready()
    assert not repository.model_ready("a")
    with pytest.raises(ModelNotReadyError, match="unavailable"):
        repository.engine("a")
    repository.start()
    assert repository.ready()
    assert repository.model_ready("a")
    repository.stop()
    assert not repository.ready()
    assert not repository.model_ready("a")


def test_empty_repository_is_not_ready(opened):
    assert not opened().ready()


def test_not_ready_while_loading(opened):
    entered, go = threading.Event(), threading.Event()

    class Slow(EchoModel):
        def load(self):
            entered.set()
            assert go.wait(WAIT_S)

    repository = opened(definition("quick"), definition("slow", make=Slow), start=False)
    starting = threading.Thread(target=repository.start)
    starting.start()
    assert entered.wait(WAIT_S)
    assert states(repository)["slow", "1"][0] is ModelState.LOADING
    assert not repository.ready()
    go.set()
    starting.join(WAIT_S)
    assert repository.ready()


def test_failed_start_leaves_no_engine_running(opened):
    good = Times(1)
    repository = opened(definition("good", make=lambda: good), definition("bad", make=Broken), start=False)
    with pytest.raises(ModelLoadError, match="weights"):
        repository.start()
    assert good.closed
    assert not repository.ready()
    assert repository.index(ready=True) == ()


def test_load_error_is_in_index_only(opened):
    repository = opened(definition("good"), find=lambda name: [definition(name, make=Broken)])
    with pytest.raises(ModelLoadError):
        repository.load("bad")
    state, why = states(repository)["bad", "1"]
    assert state is ModelState.UNAVAILABLE
    assert "/secret" in why
    with pytest.raises(ModelNotReadyError) as raised:
        repository.engine("bad")
    assert "/secret" not in str(raised.value)
    assert repository.ready(), "the others go on, and so does the server"


def test_reload_keeps_old_engine_until_ready(opened):
    made = [Times(1), Times(2)]
    entered, go = threading.Event(), threading.Event()

    def second_load():
        entered.set()
        assert go.wait(WAIT_S)

    made[1].load = second_load
    factories = iter(made)
    repository = opened(definition("a", make=lambda: next(factories)))
    loading = threading.Thread(target=repository.load, args=("a",))
    loading.start()
    assert entered.wait(WAIT_S)
    assert answer(repository, "a") == 1
    assert repository.ready()
    assert states(repository)["a", "1"][0] is ModelState.READY
    go.set()
    loading.join(WAIT_S)
    assert answer(repository, "a") == 2
    assert made[0].closed


def test_failed_reload_keeps_old_engine(opened):
    wanted = [definition("a", make=lambda: Times(1))]
    repository = opened(*wanted, find=lambda _: wanted)
    wanted[0] = definition("a", make=Broken)
    with pytest.raises(ModelLoadError):
        repository.load("a")
    assert answer(repository, "a") == 1
    assert states(repository)["a", "1"] == (ModelState.READY, "")


def test_old_engine_completes_its_requests(opened):
    held = HeldModel()
    factories = iter([held, Times(2)])
    repository = opened(definition("a", make=lambda: next(factories)))
    future = repository.engine("a").submit(request(np.array([1.0], np.float32)))
    held.wait_for_calls(1)
    loading = threading.Thread(target=repository.load, args=("a",))
    loading.start()
    while repository.engine("a") is None or repository.engine("a").metadata.platform != "Times":
        assert loading.is_alive()
    assert answer(repository, "a") == 2
    assert not future.done()
    held.release()
    assert future.result(WAIT_S)["output"].tolist() == [1.0]
    loading.join(WAIT_S)


def test_versions_follow_definitions(opened):
    wanted = [definition("a", "1"), definition("a", "2")]
    repository = opened(*wanted, find=lambda _: wanted)
    wanted[:] = [definition("a", "2"), definition("a", "3")]
    repository.load("a")
    assert repository.versions("a") == ("2", "3")
    with pytest.raises(ModelNotFoundError):
        repository.engine("a", "1")
    assert set(states(repository)) == {("a", "2"), ("a", "3")}


def test_missing_definition_reloads_last_one(opened):
    def nothing(name):
        raise ModelNotFoundError(name, "gone")

    repository = opened(definition("a"), find=nothing)
    repository.unload("a")
    repository.load("a")
    assert repository.model_ready("a")
    with pytest.raises(ModelNotFoundError, match="gone"):
        repository.load("b")


def test_unload_and_load_again(opened):
    repository = opened(definition("a"), definition("b"))
    repository.unload("a")
    repository.unload("a")
    assert states(repository)["a", "1"] == (ModelState.UNAVAILABLE, "unloaded")
    assert repository.ready()
    assert repository.versions("a") == ()
    assert [s.name for s in repository.statistics()] == ["b"]
    repository.load("a")
    assert answer(repository, "a") == 1
    repository.unload("a")
    repository.unload("b")
    assert not repository.ready(), "no model is loaded"


def test_unload_waits_for_accepted_requests(opened):
    held = HeldModel()
    repository = opened(definition("held", make=lambda: held), definition("b"))
    future = repository.engine("held").submit(request(np.array([1.0], np.float32)))
    held.wait_for_calls(1)
    unloading = threading.Thread(target=repository.unload, args=("held",))
    unloading.start()
    while states(repository)["held", "1"][0] is not ModelState.UNLOADING:
        assert unloading.is_alive()
    assert repository.ready(), "one that is unloaded on purpose takes no readiness away"
    with pytest.raises(ModelNotReadyError, match="unloading"):
        repository.engine("held")
    held.release()
    unloading.join(WAIT_S)
    assert future.result(0)["output"].tolist() == [1.0]


def test_concurrent_loads_leave_one_engine(opened):
    made: list[Times] = []

    def make():
        made.append(Times(1))
        return made[-1]

    repository = opened(definition("a", make=make))
    threads = [threading.Thread(target=repository.load, args=("a",)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        assert answer(repository, "a") == 1
    for thread in threads:
        thread.join(WAIT_S)
    assert len(made) == 7
    assert [m.closed for m in made] == [True] * 6 + [False]


# The number of instances


def scaled(name="a", version="1", make=EchoModel, **settings):
    return ModelDefinition(
        name, version, make, settings=ServeSettings(max_batch_delay_ms=0, isolation="thread", **settings)
    )


def test_number_of_instances_is_changed_and_fixed(opened):
    repository = opened(scaled())
    assert repository.instance_status("a") == InstanceStatus("a", "1", 1, 1, 0, 1, None)
    engine = repository.engine("a")
    assert repository.set_instances("a", "", 3) == InstanceStatus("a", "1", 3, 3, 0, 3, None)
    assert repository.engine("a") is engine
    assert answer(repository, "a") == 1.0
    assert repository.set_instances("a", "1", 1).instances == 1
    assert repository.scaled_models() == ()


def test_number_of_instances_follows_the_load_within_limits(opened):
    repository = opened(scaled(instances=1, instances_max=4), scaled("b"))
    assert repository.scaled_models() == (InstanceStatus("a", "1", 1, 1, 0, 1, 4),)
    repository.scale("a", "1", 9)
    assert repository.instance_status("a").instances == 4
    status = repository.set_instances("a", "1", 2, 3)
    assert (status.instances, status.instances_min, status.instances_max) == (3, 2, 3)
    repository.scale("a", "1", 1)
    assert repository.instance_status("a").instances == 2


def test_fixed_number_of_instances_is_not_scaled(opened):
    """A decision may be older than the change."""
    repository = opened(scaled(instances=1, instances_max=4))
    repository.set_instances("a", "1", 2)
    repository.scale("a", "1", 4)
    assert repository.instance_status("a").instances == 2


def test_reload_restores_the_defined_number_of_instances(opened):
    repository = opened(scaled(instances=2))
    repository.set_instances("a", "1", 1, 4)
    repository.load("a")
    assert repository.instance_status("a") == InstanceStatus("a", "1", 2, 2, 0, 2, None)


def test_instances_of_unknown_models_are_not_found(opened):
    repository = opened(scaled(), start=False)
    with pytest.raises(ModelNotFoundError):
        repository.set_instances("b", "", 2)
    with pytest.raises(ModelNotFoundError):
        repository.instance_status("b")
    with pytest.raises(ModelNotReadyError):
        repository.set_instances("a", "", 2)
    with pytest.raises(ModelNotReadyError):
        repository.scale("a", "1", 2)


def test_impossible_limits_of_instances_change_nothing(opened):
    repository = opened(scaled(instances=2))
    with pytest.raises(ConfigError, match="instances_max must be at least instances, 3, not 2"):
        repository.set_instances("a", "1", 3, 2)
    with pytest.raises(ConfigError):
        repository.set_instances("a", "1", 0)
    assert repository.instance_status("a") == InstanceStatus("a", "1", 2, 2, 0, 2, None)


def test_instances_that_do_not_load_keep_the_limits(opened):
    fails = threading.Event()

    class Heavy(EchoModel):
        def load(self):
            if fails.is_set():
                raise MemoryError("full")

    repository = opened(scaled(make=Heavy, instances=1, instances_max=2))
    fails.set()
    with pytest.raises(ModelLoadError):
        repository.set_instances("a", "1", 3)
    assert repository.instance_status("a") == InstanceStatus("a", "1", 1, 1, 0, 1, 2)
    assert answer(repository, "a") == 1.0
