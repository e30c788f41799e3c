"""The first batches of a flow, held back until it is known that the model works.

A model with a bug fails every row of them. Such a run stops, instead of recording every record of its
source as failed. See docs/adr/0030-a-bug-is-not-bad-data.md.
"""

from collections.abc import Sequence
from concurrent.futures import Future

from headrace.core.errors import BrokenModelError
from headrace.core.model_traceback import ModelTraceback
from headrace.core.predictor import Predictor
from headrace.core.tensor import InferResponse
from headrace.runs.feed import Batch

BATCHES_MIN = 3
"""The number of batches that reached the model, from which on a run is stopped."""
ROWS_MIN = 8
"""The number of their rows, from which on a run is stopped: a batch may be a single row."""
HELD_BATCHES_MAX = 64
"""The limit of held batches, also of those without a row for the model."""

Answered = tuple[Batch, InferResponse | None]
"""A batch and its response; None without a row for the model."""


class FirstBatches:
    """The first batches of a flow and their verdict. Used by the iterating thread.

    A batch is *uniform* if the model raised the same unexpected exception (of one type, at one line)
    for all of its rows. Uniform batches are held back. The first other batch shows that the model
    works: then it and all later batches pass. BATCHES_MIN uniform batches of ROWS_MIN rows in
    total, or fewer if the source ends before, show that the model is broken.

    Args:
        predictor: The predictor of the batches. A request that it failed with BrokenModelError, with
            few calls of the model, is submitted again if the model works.
        works: Whether it is known already that the model works.
    """

    def __init__(self, predictor: Predictor, *, works: bool = False) -> None:
        self._predictor = predictor
        self._held: list[tuple[Batch, InferResponse | BrokenModelError | None]] = []
        self._batches = self._rows = 0
        self._traceback: ModelTraceback | None = None
        # A row may have been predicted for an earlier flow, such as that of a worker's earlier tasks.
        self.is_decided = works or predictor.statistics().rows > 0
        """True once batches pass without a check."""

    def add(self, batch: Batch, future: Future[InferResponse] | None) -> Sequence[Answered]:
        """Add the next batch. Return the batches that pass, in order.

        Raises BrokenModelError if the model is broken, and the error of the request.
        """
        if self.is_decided:
            return [(batch, self._response(batch, future))]
        try:
            result = None if future is None else future.result()
        except BrokenModelError as error:
            result = error
        if result is None and not self._held:
            return [(batch, None)]
        self._held.append((batch, result))
        if result is not None and not self._is_uniform(batch, result):
            return self.release()
        if self._rows >= ROWS_MIN and (self._batches >= BATCHES_MIN or len(self._held) >= HELD_BATCHES_MAX):
            raise self._stop_error()
        return self.release() if len(self._held) >= HELD_BATCHES_MAX else ()

    def finish(self) -> None:
        """End the source. Raises BrokenModelError if the model failed every row of it."""
        if self._held:
            raise self._stop_error()

    def release(self) -> Sequence[Answered]:
        """Return the held batches. All later batches pass."""
        self.is_decided = True
        held, self._held = self._held, []
        return [(batch, self._final(batch, result)) for batch, result in held]

    def _is_uniform(self, batch: Batch, result: InferResponse | BrokenModelError) -> bool:
        """Count a batch. Return False if the model did not fail all of its rows alike so far."""
        assert batch.request is not None, "it has a response"
        rows = batch.request.rows
        tracebacks = (
            [result.traceback]
            if isinstance(result, BrokenModelError)
            else [failure.traceback for failure in result.failures]
        )
        if isinstance(result, InferResponse) and len(result.failures) < rows:
            return False
        for traceback in tracebacks:
            first = self._traceback = self._traceback or traceback
            if first is None or traceback is None or traceback.key != first.key:
                return False
        self._batches += 1
        self._rows += rows
        return True

    def _response(self, batch: Batch, future: Future[InferResponse] | None) -> InferResponse | None:
        if future is None:
            return None
        try:
            return future.result()
        except BrokenModelError as error:
            return self._final(batch, error)

    def _final(self, batch: Batch, result: InferResponse | BrokenModelError | None) -> InferResponse | None:
        """Return the response to a batch. Its request is submitted again if it was failed early."""
        while isinstance(result, BrokenModelError):
            assert batch.request is not None, "the model was called"
            try:
                # An instance fails a request early once, so this loop ends.
                result = self._predictor.submit(batch.request).result()
            except BrokenModelError as error:
                result = error
        return result

    def _stop_error(self) -> BrokenModelError:
        traceback = self._traceback
        assert traceback is not None, "a batch is held"
        raised = traceback.with_place(f"{traceback.kind}: {traceback.message}".removesuffix(": "))
        causes = [result.__cause__ for _, result in self._held if isinstance(result, BrokenModelError)]
        batches = "batch" if self._batches == 1 else f"{self._batches} batches"
        error = BrokenModelError(
            self._predictor.metadata.name,
            f"it raised the same exception for every tried row of its first {batches} ({self._rows:,} rows): "
            f"{raised}. Correct the model, then run again with --overwrite; or record these rows as failed "
            "with --on-error record",
            traceback=traceback,
        )
        error.__cause__ = next(iter(causes), None)
        return error
