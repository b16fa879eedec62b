"""The models of a server by name and version, as folders or the command line name them."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from leanconv.errors import InputError
from leanconv.records import dataclass
from leanconv.server.plans import Plans
from leanconv.server.ports import described
from leanconv.server.refusals import NOT_FOUND, RefusedError

MOST_MODELS = 1000
_KEPT_LATENCIES = 1000
_NAME = re.compile(r"[\w.+-][\w.+ -]{0,199}")


@dataclass(frozen=True)
class Source:
    """Where a model comes from."""

    name: str
    version: str
    path: Path


def sources(given: Iterable[str]) -> list[Source]:
    """The models that a command line names: files, `NAME=FILE`, folders.

    A folder holds `NAME.onnx`, which is version 1, and `NAME/VERSION/model.onnx`.

    Raises:
        InputError: there is none in a folder, or two have the same name and version.
    """
    found: dict[tuple[str, str], Source] = {}
    for text in given:
        for source in _sources(text):
            key = source.name, source.version
            if key in found:
                raise InputError(
                    f"two models are {source.name!r} of version {source.version}: "
                    f"{found[key].path} and {source.path}; name one: NAME={source.path}"
                )
            if not _NAME.fullmatch(source.name):
                raise InputError(
                    f"{source.path}: the name {source.name!r} is no part of an address; name it: "
                    f"NAME={source.path}"
                )
            found[key] = source
            if len(found) > MOST_MODELS:
                raise InputError(f"more than {MOST_MODELS} models; expected fewer")
    return list(found.values())


def _sources(text: str) -> Iterator[Source]:
    name, equals, rest = text.partition("=")
    if equals and not os.path.exists(text) and os.sep not in name:
        yield Source(name, "1", Path(rest))
        return
    path = Path(text)
    if not path.is_dir():
        yield Source(path.stem, "1", path)
        return
    inside = [Source(file.stem, "1", file) for file in sorted(path.glob("*.onnx"))]
    for file in sorted(path.glob("*/*/model.onnx")):
        if file.parent.name.isdecimal():
            inside.append(Source(file.parent.parent.name, file.parent.name, file))
    if not inside:
        raise InputError(
            f"{text} holds no model; expected NAME.onnx or NAME/VERSION/model.onnx, where VERSION "
            "is a number"
        )
    yield from inside


class ServedModel:
    """A model that is ready.

    Args:
        source: its name and version.
        plans: what is planned of it.

    Attributes:
        expected: requests for it that are being read.
        latencies: of the last requests, in nanoseconds.
        answered: requests that got a result.
    """

    def __init__(self, source: Source, plans: Plans) -> None:
        self.name, self.version, self.plans = source.name, source.version, plans
        self.expected = 0
        self.latencies: deque[int] = deque(maxlen=_KEPT_LATENCIES)
        self.answered = 0

    def answered_in(self, duration_ns: int) -> None:
        """Remember how long a request took."""
        self.latencies.append(duration_ns)
        self.answered += 1

    def metadata(self, versions: Sequence[str]) -> dict[str, Any]:
        """As the protocol has it."""
        return {
            "name": self.name,
            "versions": list(versions),
            "platform": "onnx_leanconv",
            "inputs": described(self.plans.inputs),
            "outputs": described(self.plans.outputs),
        }


class Models:
    """All models of a server."""

    def __init__(self, models: Iterable[ServedModel]) -> None:
        self._models: dict[str, dict[str, ServedModel]] = {}
        for model in models:
            self._models.setdefault(model.name, {})[model.version] = model

    def __iter__(self) -> Iterator[ServedModel]:
        for versions in self._models.values():
            yield from versions.values()

    def versions(self, name: str) -> list[str]:
        """The versions of a model, ascending."""
        return sorted(self._models[name], key=int)

    def found(self, name: str, version: str | None) -> ServedModel:
        """A model; its newest version where none is named.

        Raises:
            RefusedError: there is none.
        """
        versions: Mapping[str, ServedModel] = self._models.get(name, {})
        if not versions:
            raise RefusedError(
                NOT_FOUND, f"there is no model {name[:100]!r}; there are {', '.join(self._models)}"
            )
        found = versions.get(self.versions(name)[-1] if version is None else version)
        if found is None:
            there = ", ".join(self.versions(name))
            raise RefusedError(
                NOT_FOUND, f"model {name!r} has no version {version!r}; it has {there}"
            )
        return found
