"""Faulty Beam runners: one reports success without work, one fails. Real runners behave like them."""

from apache_beam.runners.runner import PipelineResult, PipelineRunner, PipelineState


class _Done(PipelineResult):
    def __init__(self) -> None:
        super().__init__(PipelineState.DONE)

    def wait_until_finish(self, duration=None):
        return self.state


class LosingRunner(PipelineRunner):
    """A runner that reports success without having run anything."""

    def run_pipeline(self, pipeline, options):
        return _Done()


class FailingRunner(PipelineRunner):
    """A runner that cannot start a pipeline."""

    def run_pipeline(self, pipeline, options):
        raise RuntimeError("the job server is not there")
