"""Runners of Beam that do wrong, as real ones were measured to: they say that a pipeline is done."""

from apache_beam.runners.runner import PipelineResult, PipelineRunner, PipelineState


class _Done(PipelineResult):
    def __init__(self) -> None:
        super().__init__(PipelineState.DONE)

    def wait_until_finish(self, duration=None):
        return self.state


class LosingRunner(PipelineRunner):
    """Does nothing at all, and is content."""

    def run_pipeline(self, pipeline, options):
        return _Done()


class FailingRunner(PipelineRunner):
    def run_pipeline(self, pipeline, options):
        raise RuntimeError("the job server is not there")
