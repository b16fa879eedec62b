"""Networks with some layers quantised, run on samples: how they answer, how long they take."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from leanconv.api.network import Network
from leanconv.errors import LeanConvError, ModelError, shown
from leanconv.graph.onnx_graph import OnnxGraph
from leanconv.progress import steps
from leanconv.quantizer.emit import Switches
from leanconv.quantizer.float_network import network_of
from leanconv.quantizer.result import ALL_BITS, FINER, SATURATING, Rungs, Trial, named
from leanconv.quantizer.samples import Arrays, Samples
from leanconv.quantizer.scores import Score, output_error
from leanconv.quantizer.variants import Variants
from leanconv.records import cached_property

log = logging.getLogger(__name__)

_MOST_KEPT = 256 << 20  # bytes of outputs in float32 that are not computed again
_RUNS = 30  # of which the fastest counts, at most
_SATURATING_ON = 8  # samples, at most, that NumPy computes
_MOST_NS = 400_000_000  # that they take together, about


class Trials:
    """Runs and scores of the network, in float32 and with layers quantised.

    Args:
        original: the file in float32.
        variants: with its layers quantised.
        samples: all of them.
        score: of answers.
        threads: of runs.

    Attributes:
        done: the trials so far.
        classes: of the samples scored so far, where answers are classes.
        runs_integers: whether leanconv could compute all networks so far on codes.
        predicted_ns: predicts the time of a choice; None where that is not known.
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
        self.classes: set[int] = set()
        self._float_ns: int | None = None
        self.predicted_ns: Callable[[Rungs], int | None] = lambda _: None

    def reference(self, number: int, sample: Arrays) -> Arrays:
        """Return the outputs in float32 for a sample.

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

    def network(self, rungs: Rungs, variants: Variants | None = None) -> Network:
        """Return the network with layers in these precisions.

        It is the file itself, or, where leanconv lacks an operation on integers that it needs, the
        same numbers in floats.
        """
        made = variants or self._variants
        if self.runs_integers:
            try:
                return network_of(made.file(rungs), threads=self._threads)
            except LeanConvError as error:
                log.info("codes are taken as floats: %s", error)
                self.runs_integers = False
        return network_of(made.like(rungs), threads=self._threads)

    def _answers(self, rungs: Rungs) -> Callable[[Arrays], Arrays]:
        """Return a function that runs a choice, or about: all of int8 by one network."""
        if named(rungs, *FINER) or self._switched is None:
            return self.network(rungs).run
        network, switches = self._switched
        given = self._variants.settings(switches, rungs)
        return lambda sample: network.run({**sample, **given})

    @cached_property
    def _switched(self) -> tuple[Network, Switches] | None:
        """The network of all choices of int8; None where leanconv cannot run it."""
        try:
            graph, switches = self._variants.switched()
            return network_of(graph, threads=self._threads), switches
        except LeanConvError as error:
            log.info("each choice has a network of its own: %s", error)
            return None

    def errors(self, rungs: Rungs, numbers: Collection[int]) -> float:
        """Return the error of the outputs on the samples of these numbers, root mean square."""
        answers = self._answers(rungs)
        found = []
        for number in numbers:
            sample = self._samples.readers[number]()
            found.append(output_error(answers(sample), self.reference(number, sample)))
        return float(np.sqrt(np.mean(np.square(found))))

    def search(self, rungs: Rungs, numbers: Collection[int]) -> Trial:
        """Score a choice on samples it was calibrated on, about; its time is what plans predict."""
        answers, time_ns = self._answers(rungs), self.predicted_ns(rungs)
        return self._scored(rungs, answers, numbers, "calibrated", lambda _: time_ns)

    def trial(self, rungs: Rungs, numbers: Collection[int]) -> Trial:
        """Score the file with layers in these precisions on samples that were held out."""
        return self._run(rungs, self.network(rungs), numbers)

    def last(self, rungs: Rungs, numbers: Collection[int]) -> tuple[Trial, Mapping[str, float]]:
        """Return a trial, and the nanoseconds of each step, by name; none where not known."""
        network = self.network(rungs)
        made = self._run(rungs, network, numbers)
        return made, {} if made.time_ns is None else self._step_ns(network)

    def of_all_bits(self, rungs: Rungs, numbers: Collection[int]) -> Trial:
        """A trial of the file with weights of all 8 bits, whose sums may saturate elsewhere."""
        network = self.network(rungs, self._variants.of_all_bits())
        return self._run(rungs, network, numbers, ALL_BITS)

    def elsewhere(self, rungs: Rungs, numbers: Collection[int]) -> Trial | None:
        """Score the answers of engines whose sums saturate; None where none can, or unknown.

        NumPy computes it, on the first of some samples.
        """
        if not self._variants.saturates(rungs):
            return None
        few = list(numbers)[:_SATURATING_ON]
        try:
            saturating = self._variants.saturating(rungs)
            return self._scored(rungs, saturating.run, few, "held out", lambda _: None, SATURATING)
        except LeanConvError as error:
            log.info("what engines answer whose sums saturate is not known: %s", error)
            return None

    def _run(
        self, rungs: Rungs, network: Network, numbers: Collection[int], how: str = ""
    ) -> Trial:
        def time_ns(sample: Arrays) -> int | None:
            if not self.runs_integers:
                return None
            found_ns, self._float_ns = _fastest((network, self._exact), sample)
            return found_ns

        return self._scored(rungs, network.run, numbers, "held out", time_ns, how)

    def _scored(
        self,
        rungs: Rungs,
        answers: Callable[[Arrays], Arrays],
        numbers: Collection[int],
        what: str,
        time_of: Callable[[Arrays], int | None],
        how: str = "",
    ) -> Trial:
        scores, plain, errors = [], [], []
        times: list[int | None] = []
        for number in steps(f"scoring {what} samples", numbers, len(numbers)):
            sample = self._samples.readers[number]()
            exact, found = self.reference(number, sample), answers(sample)
            self.classes |= self._score.classes(number, exact)
            scores.append(self._score.of(number, found, exact, sample))
            plain.append(self._score.of(number, exact, exact, sample))
            errors.append(output_error(found, exact))
            if not times:
                times.append(time_of(sample))
        made = Trial(
            samples=what,
            precisions=self._variants.counts(rungs),
            score=float(np.mean(scores)),
            float_score=float(np.mean(plain)),
            error=float(np.sqrt(np.mean(np.square(errors)))),
            time_ns=times[0],
            how=how,
            count=len(numbers),
        )
        self.done.append(made)
        return made

    @property
    def float_ns(self) -> int:
        """Time of the network in float32, measured in turns with the last trial."""
        if self._float_ns is None:
            (self._float_ns,) = _fastest((self._exact,), self._timed())
        return self._float_ns

    def _timed(self) -> Arrays:
        return self._samples.readers[self._samples.numbers(1)[0]]()

    def _step_ns(self, network: Network) -> dict[str, float]:
        try:
            rows = network.profile(dict(self._timed()), repeats=5)
        except LeanConvError as error:
            log.info("layers are not timed: %s", error)
            return {}
        found: dict[str, float] = {}
        for row in rows:  # what pads a layer's input has the layer's name
            found[row.name] = found.get(row.name, 0.0) + row.least_ns
        return found


def _refuse_unsound(outputs: Arrays, number: int) -> None:
    for name, array in outputs.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ModelError(
                f"output {shown(name)!r} has NaN or infinite numbers in float32 on sample "
                f"{number + 1}; expected finite ones: look whether the samples are as the network "
                "expects them"
            )


def _fastest(networks: Sequence[Network], sample: Arrays) -> list[int]:
    """Return the least times of networks that run in turns, so that load falls on all alike."""
    for network in networks:
        network.run(sample)
    times: list[list[int]] = []
    while len(times) < _RUNS and sum(map(sum, times)) < _MOST_NS * len(networks):
        times.append([])
        for network in networks:
            begin = time.perf_counter_ns()
            network.run(sample)
            times[-1].append(time.perf_counter_ns() - begin)
    return [min(each) for each in zip(*times, strict=True)]
