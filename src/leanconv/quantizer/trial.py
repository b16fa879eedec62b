"""Networks with some layers quantised, run on samples: how they answer, how long they take."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping

import numpy as np

from leanconv.api.network import Network
from leanconv.errors import LeanConvError, ModelError
from leanconv.graph.onnx_names import shown
from leanconv.progress import steps
from leanconv.quantizer.onnx_graph import OnnxGraph
from leanconv.quantizer.result import Trial
from leanconv.quantizer.running import network_of
from leanconv.quantizer.samples import Samples
from leanconv.quantizer.scores import Score, output_error
from leanconv.quantizer.variants import Variants

log = logging.getLogger(__name__)

Arrays = Mapping[str, np.ndarray]
_MOST_KEPT = 256 << 20  # bytes of outputs in float32 that are not computed again
_RUNS = 30  # of which the fastest counts, at most
_MOST_NS = 400_000_000  # that they take together, about


class Trials:
    """What the network gives in float32, and what it gives with layers quantised.

    Args:
        original: the file in float32.
        variants: with its layers quantised.
        samples: all of them.
        score: what answers are scored by.
        threads: of runs.

    Attributes:
        done: the trials so far.
        runs_integers: whether leanconv computes on codes what it was asked so far.
    """

    def __init__(
        self,
        original: OnnxGraph,
        variants: Variants,
        samples: Samples,
        score: Score,
        threads: int | None,
    ) -> None:
        self._variants, self._samples, self._score = variants, samples, score
        self._threads = threads
        self._exact = network_of(original, threads=threads)
        self._kept: dict[int, Arrays] = {}
        self._kept_bytes = 0
        self.runs_integers = True
        self.done: list[Trial] = []

    def reference(self, number: int, sample: Arrays) -> Arrays:
        """The outputs in float32 for a sample.

        Raises:
            ModelError: one is not finite.
        """
        found = self._kept.get(number)
        if found is None:
            found = self._exact.run(sample)
            _refuse_unsound(found, number)
            self._kept_bytes += sum(array.nbytes for array in found.values())
            if self._kept_bytes <= _MOST_KEPT:
                self._kept[number] = found
        return found

    def network(self, chosen: Collection[str]) -> Network:
        """The network with these layers quantised.

        It is the file itself, or, where leanconv lacks an operation on integers that it needs, the
        same numbers in floats.
        """
        if self.runs_integers:
            try:
                return network_of(self._variants.file(chosen), threads=self._threads)
            except LeanConvError as error:
                log.info("codes are taken as floats: %s", error)
                self.runs_integers = False
        return network_of(self._variants.like(chosen), threads=self._threads)

    def errors(self, chosen: Collection[str], numbers: Collection[int]) -> float:
        """The error of the outputs on the samples of these numbers, root mean square."""
        network = self.network(chosen)
        found = []
        for number in numbers:
            sample = self._samples.readers[number]()
            found.append(output_error(network.run(sample), self.reference(number, sample)))
        return float(np.sqrt(np.mean(np.square(found))))

    def trial(self, chosen: Collection[str], numbers: Collection[int], what: str) -> Trial:
        """Score the network with these layers quantised on the samples of these numbers."""
        network = self.network(chosen)
        scores, plain, errors = [], [], []
        fastest: int | None = None
        for number in steps(f"scoring {what} samples", numbers, len(numbers)):
            sample = self._samples.readers[number]()
            exact, found = self.reference(number, sample), network.run(sample)
            scores.append(self._score.of(number, found, exact, sample))
            plain.append(self._score.of(number, exact, exact, sample))
            errors.append(output_error(found, exact))
            if fastest is None:
                fastest = _fastest(network, sample)
        made = Trial(
            samples=what,
            layers=len(chosen),
            score=float(np.mean(scores)),
            float_score=float(np.mean(plain)),
            error=float(np.sqrt(np.mean(np.square(errors)))),
            time_ns=fastest if self.runs_integers else None,
        )
        self.done.append(made)
        return made

    def float_ns(self) -> int:
        """How long the network takes in float32, on the sample on which trials are timed."""
        return _fastest(self._exact, self._samples.readers[self._samples.numbers(1)[0]]())

    def layer_ns(self, chosen: Collection[str]) -> dict[str, float]:
        """How long each step of the network takes, by its name."""
        sample = self._samples.readers[self._samples.numbers(1)[0]]()
        network = self.network(chosen)
        try:
            rows = network.profile(dict(sample), repeats=5)
        except LeanConvError as error:
            log.info("layers are not timed: %s", error)
            return {}
        return {row.name: float(row.least_ns) for row in rows}


def _refuse_unsound(outputs: Arrays, number: int) -> None:
    """Refuse outputs in float32 to which nothing can be compared."""
    for name, array in outputs.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ModelError(
                f"output {shown(name)!r} has NaN or infinite numbers in float32 on sample "
                f"{number + 1}; expected finite ones: look whether the samples are as the network "
                "expects them"
            )


def _fastest(network: Network, sample: Arrays) -> int:
    network.run(sample)
    times: list[int] = []
    while len(times) < _RUNS and sum(times) < _MOST_NS:
        begin = time.perf_counter_ns()
        network.run(sample)
        times.append(time.perf_counter_ns() - begin)
    return min(times)
