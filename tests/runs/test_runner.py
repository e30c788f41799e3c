from headrace.runs.ledger import Ledger
from headrace.runs.sample import schema_of
from headrace.runs.tasks import InProcessRunner
from headrace.runs.work import RunWork
from runs.support import IN, OUT, FailingPredictor, make_settings, plan_of, put, rows


def work_of(stores, predictor, **tasks) -> RunWork:
    run_settings = make_settings(tasks=tasks)
    plan = plan_of(stores, run_settings)
    ledger = Ledger(stores.for_uri(OUT), OUT)
    infos = [planned.info for planned in plan.objects]
    schema = schema_of(infos, stores, run_settings, predictor.metadata)
    return RunWork(plan=plan, settings=run_settings, stores=stores, ledger=ledger, schema=schema)


def test_tasks_run_in_order_and_are_reported(stores, shared):
    put(stores, {f"{n}.csv": rows(3) for n in range(3)})
    records = []
    work = work_of(stores, shared, task_objects_max=1)
    work = RunWork(
        **{f: getattr(work, f) for f in ("plan", "settings", "stores", "ledger", "schema")},
        on_task=records.append,
    )
    runner = InProcessRunner(shared)
    assert runner.reading() == []
    assert runner.run(work, work.plan.tasks[1:])
    assert [record.task for record in records] == [1, 2]
    assert list(work.ledger.tasks()) == [1, 2]
    assert runner.reading() == [IN + "2.csv"]
    assert runner.metadata.name == "double"
    assert runner.statistics().calls > 0


def test_drained_runner_runs_nothing(stores, shared):
    put(stores, {"a.csv": rows(9)})
    predictor = FailingPredictor(shared, at=-1)
    runner = InProcessRunner(predictor)
    runner.drain()
    work = work_of(stores, predictor)
    assert not runner.run(work, work.plan.tasks)
    assert (predictor.calls, work.ledger.tasks()) == (0, {})


def test_empty_task_list_succeeds(stores, shared):
    put(stores, {"a.csv": rows(9)})
    assert InProcessRunner(shared).run(work_of(stores, shared), [])
