"""Options of sessions and runs: those that are obeyed, and those that mean nothing here."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from enum import IntEnum
from typing import Any

from leanconv.errors import TerminatedError, short
from leanconv.graph.onnx_tensor import GivenWeights
from leanconv.interrupts import check, ended_when
from leanconv.onnxruntime.exceptions import (
    Fail,
    InvalidArgument,
    NotImplemented,
    raised_as_named,
)
from leanconv.settings import MOST_THREADS

_FOLDER = "session.model_external_initializers_file_folder_path"
CPU = "CPUExecutionProvider"


class GraphOptimizationLevel(IntEnum):
    """onnxruntime's levels of rewriting; leanconv compiles all of a graph at each."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """onnxruntime's ways to run nodes, side by side or not; leanconv runs each on all threads."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """onnxruntime's orders of nodes; leanconv's plan has its own."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class _Entries:
    """Text by text, as `add_session_config_entry` and `add_run_config_entry` keep it."""

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}

    def _entry(self, key: str, owner: str) -> str:
        if key not in self._entries:
            # RuntimeError is what onnxruntime raises here.
            raise RuntimeError(f"{owner} does not have configuration with key: {key}")
        return self._entries[key]


class SessionOptions(_Entries):
    """Options of a session; onnxruntime's names, and any other name may be set.

    Obeyed: `intra_op_num_threads` (0: all cores that this process may use), `enable_profiling`
    and `profile_file_prefix`, `add_free_dimension_override_by_name`, and for weights:
    `add_initializer`, `add_external_initializers` and those of files in memory, and of the
    configuration entries `session.model_external_initializers_file_folder_path`; the other entries
    are kept for whoever asks. All others say how onnxruntime works inside, and change nothing here.
    """

    def __init__(self) -> None:
        super().__init__()
        self.enable_cpu_mem_arena = True
        self.enable_mem_pattern = True
        self.enable_mem_reuse = True
        self.enable_profiling = False
        self.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        self.execution_order = ExecutionOrder.DEFAULT
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.inter_op_num_threads = 0
        self.intra_op_num_threads = 0
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.optimized_model_filepath = ""
        self.profile_file_prefix = "onnxruntime_profile_"
        self.use_deterministic_compute = False
        self.use_per_session_threads = True
        self._extents: dict[str, int] = {}
        self._files: dict[str, memoryview] = {}
        self._replaced: dict[str, Any] = {}
        self._shared: dict[str, Any] = {}

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep a text by its key."""
        self._entries[str(key)] = str(value)

    def get_session_config_entry(self, key: str) -> str:
        """The text kept by a key.

        Raises:
            RuntimeError: there is none.
        """
        return self._entry(key, "SessionOptions")

    def add_free_dimension_override_by_name(self, name: str, extent: int) -> None:
        """Fix an extent that the file gives a name only."""
        self._extents[str(name)] = int(extent)

    def add_free_dimension_override_by_denotation(self, denotation: str, extent: int) -> None:
        """Refuse: leanconv does not read denotations."""
        raise NotImplemented.of(
            f"got denotation {short(denotation)}; expected a name: use "
            "add_free_dimension_override_by_name"
        )

    def add_initializer(self, name: str, value: Any) -> None:
        """Give an initializer another value, where the network has one of that name."""
        self._shared[str(name)] = value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[Any]) -> None:
        """Give values to initializers whose data would be in external files.

        Raises:
            RuntimeError: there is not one value for each name.
        """
        _check_pairs(names, values)
        self._replaced.update(zip(names, values, strict=True))

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], buffers: Sequence[Any], lengths: Sequence[int]
    ) -> None:
        """Give the contents of external files, by the names that the model has for them.

        Raises:
            RuntimeError: there is not one buffer and one length for each name, or a name is given
                twice.
        """
        _check_pairs(names, buffers)
        _check_pairs(names, lengths)
        for name, buffer, length in zip(names, buffers, lengths, strict=True):
            if name in self._files:
                raise RuntimeError(f"the external file {short(name)} is given twice")
            self._files[name] = memoryview(buffer).cast("B")[: int(length)]

    def register_custom_ops_library(self, path: str) -> None:
        """Refused: a library of onnxruntime's operators runs in onnxruntime alone."""
        raise Fail.of(
            f"got the library {short(path)}; leanconv runs no operators from libraries: use "
            "onnxruntime for this network"
        )

    @property
    def extents(self) -> dict[str, int]:
        """Extents that were fixed, by name."""
        return self._extents

    def weights(self, known: Collection[str]) -> GivenWeights | None:
        """Return the weights that replace a model's, or their folder; None without any.

        Args:
            known: names of its initializers.

        Raises:
            InvalidArgument: the folder is none.
        """
        folder = self._entries.get(_FOLDER)
        shared = {name: value for name, value in self._shared.items() if name in known}
        values = {**shared, **self._replaced}
        if not (folder or self._files or values):
            return None
        arrays = {name: value.numpy() for name, value in values.items()}
        with raised_as_named():
            given = folder or None, {**self._files, **arrays}
            found = [GivenWeights.checked(each) for each in given]
        where, held = (each or GivenWeights() for each in found)
        return replace(held, folder=where.folder)

    def pass_on(self, theirs: Any, ort_value: Any) -> list[Any]:
        """Tell the real onnxruntime's options of configuration entries and weights.

        Args:
            theirs: its options.
            ort_value: its class `OrtValue`.

        Returns:
            What must live as long as its session.
        """
        for key, text in self._entries.items():
            theirs.add_session_config_entry(key, text)
        files = self._files
        if files:
            theirs.add_external_initializers_from_files_in_memory(
                [*files], [*files.values()], [*map(len, files.values())]
            )
        replaced, shared = (
            {name: ort_value.ortvalue_from_numpy(value.numpy()) for name, value in each.items()}
            for each in (self._replaced, self._shared)
        )
        if replaced:
            theirs.add_external_initializers([*replaced], [*replaced.values()])
        for name, value in shared.items():
            theirs.add_initializer(name, value)
        return [*replaced.values(), *shared.values()]

    def fixed(self, shape: Iterable[int | str | None]) -> list[int | str | None]:
        """A shape with numbers for the names that were fixed."""
        return [self._extents.get(n, n) if isinstance(n, str) else n for n in shape]

    @property
    def threads(self) -> int | None:
        """Threads that take part; None for all cores.

        Raises:
            InvalidArgument: the option is no number of threads.
        """
        number = self.intra_op_num_threads
        if isinstance(number, bool) or not isinstance(number, int):
            raise InvalidArgument.of(
                f"intra_op_num_threads is {short(number)}; expected an integer"
            )
        return min(number, MOST_THREADS) if number > 0 else None


class RunOptions(_Entries):
    """Options of one run.

    `terminate` ends it, also where another thread sets it meanwhile: within a stage or some
    milliseconds. The rest is kept and changes nothing here.
    """

    def __init__(self) -> None:
        super().__init__()
        self._terminate = False
        self._followers: list[Any] = []
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.only_execute_path_to_fetches = False

    @property
    def terminate(self) -> bool:
        """True if runs with these options are to end, and others are refused."""
        return self._terminate

    @terminate.setter
    def terminate(self, ended: bool) -> None:
        self._terminate = ended
        for each in list(self._followers):
            each.terminate = ended

    @contextmanager
    def followed_by(self, theirs: Any) -> Iterator[Any]:
        """While the block runs, options of the real onnxruntime say what these do."""
        self._followers.append(theirs)
        try:
            theirs.terminate = self._terminate
            yield theirs
        finally:
            self._followers.remove(theirs)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep a text by its key."""
        self._entries[str(key)] = str(value)

    def get_run_config_entry(self, key: str) -> str:
        """The text kept by a key.

        Raises:
            RuntimeError: there is none.
        """
        return self._entry(key, "RunOptions")


def _check_pairs(names: Sequence[Any], others: Sequence[Any]) -> None:
    if len(names) != len(others):  # RuntimeError is what onnxruntime raises here
        raise RuntimeError(f"got {len(names)} names and {len(others)} values; expected as many")


def ended_by(options: Any) -> AbstractContextManager[None]:
    """End runs inside by `Fail` where a run's options say so, now or later."""
    return nullcontext() if options is None else _ended_by(options)


@contextmanager
def _ended_by(options: Any) -> Iterator[None]:
    try:
        with ended_when(lambda: bool(getattr(options, "terminate", False))):
            check()
            yield
    except TerminatedError as error:
        raise Fail.of("Exiting due to terminate flag being set to true.") from error


def get_available_providers() -> list[str]:
    """Names of providers that sessions can have."""
    return [CPU]


def get_all_providers() -> list[str]:
    """Names of providers that sessions can have; leanconv knows no others."""
    return [CPU]


def chosen(
    providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None,
    options: Sequence[Mapping[str, Any]] | None,
) -> dict[str, dict[str, Any]]:
    """The providers of a session with their options, in order.

    Args:
        providers: names, or names with options; None for all that there are. Those that leanconv
            lacks are left out with a warning, as onnxruntime does.
        options: of each provider, where they do not stand beside the names.

    Raises:
        InvalidArgument: they are no names, or are not as many as the options.
    """
    given = list(providers) if providers else [CPU]
    if options and len(options) != len(given):
        raise InvalidArgument.of(
            f"got {len(options)} provider_options for {len(given)} providers; expected one each"
        )
    result: dict[str, dict[str, Any]] = {}
    for number, each in enumerate(given):
        name, own = each if isinstance(each, tuple) and len(each) == 2 else (each, {})
        if not isinstance(name, str):
            raise InvalidArgument.of(
                f"provider {short(each)} is {type(each).__name__}; expected a name, or a name "
                "with a dictionary"
            )
        if name != CPU:
            warnings.warn(
                f"Specified provider {name!r} is not in available provider names. Available "
                f"providers: {CPU!r}",
                stacklevel=3,
            )
            continue
        result[name] = {**own, **(options[number] if options else {})}
    return result or {CPU: {}}
