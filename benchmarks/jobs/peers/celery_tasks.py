"""Celery over Redis (Valkey): a prefork pool, early acknowledgements, no persistence, no results."""

import time

from celery import Celery
from celery.signals import worker_ready
from job_peer import Marks, read_arguments, report

arguments = read_arguments()
app = Celery("bench", broker=arguments.url)
app.conf.update(
    task_ignore_result=True,
    task_store_errors_even_if_ignored=False,
    worker_prefetch_multiplier=64,
    worker_redirect_stdouts=False,
    broker_connection_retry_on_startup=True,
)
marks = Marks(arguments.marks)


@app.task(name="bench")
def bench(_: int) -> None:
    time.sleep(arguments.job_s)
    marks.done()


@worker_ready.connect
def ready(**_: object) -> None:
    report("ready")


def submit() -> None:
    report("begin")
    with app.producer_pool.acquire(block=True) as producer:
        for number in range(arguments.jobs):
            bench.apply_async((number,), producer=producer)


if __name__ == "__main__":
    if arguments.role == "submit":
        submit()
    else:
        options = ["--pool", "prefork", "--concurrency", str(arguments.concurrency), "--loglevel", "ERROR"]
        app.worker_main(["worker", "--without-gossip", "--without-mingle", "--without-heartbeat", *options])
