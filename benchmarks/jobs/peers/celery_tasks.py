"""Celery over Redis (Valkey): a prefork pool, messages acknowledged early and unlogged on the server, no results kept."""

import time

from celery import Celery
from celery.signals import worker_ready
from job_peer import Marks, say, told

given = told()
app = Celery("bench", broker=given.url)
app.conf.update(
    task_ignore_result=True,
    task_store_errors_even_if_ignored=False,
    worker_prefetch_multiplier=64,
    worker_redirect_stdouts=False,
    broker_connection_retry_on_startup=True,
)
marks = Marks(given.marks)


@app.task(name="bench")
def bench(_: int) -> None:
    time.sleep(given.job_s)
    marks.done()


@worker_ready.connect
def ready(**_: object) -> None:
    say("ready")


def submit() -> None:
    say("begin")
    with app.producer_pool.acquire(block=True) as producer:
        for number in range(given.jobs):
            bench.apply_async((number,), producer=producer)


if __name__ == "__main__":
    if given.role == "submit":
        submit()
    else:
        options = ["--pool", "prefork", "--concurrency", str(given.concurrency), "--loglevel", "ERROR"]
        app.worker_main(["worker", "--without-gossip", "--without-mingle", "--without-heartbeat", *options])
