from headrace.transforms.ledger import TransformLedger
from headrace.transforms.plan import make_plan
from headrace.transforms.probe import learn
from headrace.transforms.runner import InProcessRunner
from headrace.transforms.work import Work
from transforms.support import IN, OUT, Breaking, put, rows, settings_of


def work_of(stores, predictor, **tasks) -> Work:
    used = settings_of(tasks=tasks)
    plan = make_plan(IN, OUT, stores, used)
    ledger = TransformLedger(stores.for_uri(OUT), OUT)
    learned = learn(plan, stores, used, predictor.metadata)
    return Work(plan=plan, settings=used, stores=stores, ledger=ledger, learned=learned)


def test_tasks_are_done_in_order_and_told(stores, shared):
    put(stores, {f"{n}.csv": rows(3) for n in range(3)})
    told = []
    work = work_of(stores, shared, task_objects_max=1)
    work = Work(
        **{f: getattr(work, f) for f in ("plan", "settings", "stores", "ledger", "learned")},
        on_task=told.append,
    )
    runner = InProcessRunner(shared)
    assert runner.reading() == []
    assert runner.run(work, work.plan.tasks[1:], begins={}, checkpoints={})
    assert [record.task for record in told] == [1, 2]
    assert list(work.ledger.tasks()) == [1, 2]
    assert runner.reading() == [IN + "2.csv"]
    assert runner.metadata.name == "double"
    assert runner.statistics().calls > 0


def test_drained_before_it_runs_it_does_nothing(stores, shared):
    put(stores, {"a.csv": rows(9)})
    predictor = Breaking(shared, at=-1)
    runner = InProcessRunner(predictor)
    runner.drain()
    work = work_of(stores, predictor)
    assert not runner.run(work, work.plan.tasks, begins={}, checkpoints={})
    assert (predictor.asked, work.ledger.tasks()) == (0, {})


def test_no_tasks_are_done_at_once(stores, shared):
    put(stores, {"a.csv": rows(9)})
    assert InProcessRunner(shared).run(work_of(stores, shared), [], begins={}, checkpoints={})
