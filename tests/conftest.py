"""What a test session leaves out, and the machine that it takes this one for."""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings

from support import covering, drawn, machines, object_store

# Tests make millions of objects, few of them garbage that only the collector finds: looking for it
# as often as Python does by itself takes an eighth of their time. Where memory is traced, it does.
USUAL, SELDOM = gc.get_threshold(), (100_000, 20, 50)
gc.set_threshold(*SELDOM)
# Now, because other conftest.py, which come next, import leanconv.
OBJECTS = object_store.chosen_folder()
MACHINE = machines.describe_host()
GUARDED = os.environ.get("TEST_GUARDED", "")
HALF = os.environ.get("TEST_FILES") == "half"
# What Hypothesis draws depends on the test alone: what passed once passes everywhere. A search for
# faults draws anew.
settings.register_profile("same", derandomize=True)
settings.register_profile("anew", derandomize=False)
settings.load_profile(os.environ.get("TEST_DRAWS", "same"))
# What leanconv works around fails here, and in the processes that tests start.
os.environ["LEANCONV_RAISE_DEFECTS"] = "1"
# What plans is tested, not what earlier sessions planned: a test of snapshots says so.
os.environ.setdefault("LEANCONV_SNAPSHOT_CACHE_BYTES", "0")


# Files that would be begun among the last, and for whose end all other processes would wait.
LONG = ("test_fuzz_load.py", "test_docs.py")


def _with_collector(
    change: Callable[..., None], threshold: tuple[int, int, int]
) -> Callable[..., None]:
    def changed(*given: int) -> None:
        gc.set_threshold(*threshold)
        change(*given)

    return changed


tracemalloc.start = _with_collector(tracemalloc.start, USUAL)
tracemalloc.stop = _with_collector(tracemalloc.stop, SELDOM)


def pytest_configure(config: pytest.Config) -> None:
    """End well where this machine cannot run the code of the one it is taken for, or is that."""
    reason = machines.why_not(MACHINE) if MACHINE else ""
    if MACHINE and not reason and machines.is_here(MACHINE):
        reason = f"this machine is a {MACHINE}, and tests without TEST_MACHINE are those"
    if reason:
        pytest.exit(f"nothing to test: {reason}", returncode=0)
    if GUARDED:
        from support.guarded_programs import install

        install(pytest.MonkeyPatch(), GUARDED)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say which machine this one is taken for, where objects are kept, which side is guarded."""
    without = "none are kept" if OBJECTS is None else object_store.why_not(OBJECTS)
    facts = [f"objects: {without or OBJECTS}"]
    if GUARDED:
        facts.append(f"guard pages: at the {GUARDED} of every buffer")
    if MACHINE is None:
        return facts
    from leanconv.codegen.host import host

    here = host()
    return [
        f"machine: {MACHINE}, {here.isa}, {here.fma_units:g} FMA units, "
        f"L1 {here.l1_bytes >> 10} KiB, L2 {here.l2_bytes >> 10} KiB, L3 {here.l3_bytes >> 20} MiB",
        *facts,
    ]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Have the garbage collector leave alone what collecting made: a million objects that stay.

    Every full run of it would visit them, for half a second.
    """
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Bound what sessions keep, once their workers have ended."""
    if OBJECTS is not None and not hasattr(session.config, "workerinput"):
        object_store.keep_within(OBJECTS)


@pytest.fixture
def real_compiler() -> Iterator[None]:
    """LLVM makes all code of this test: what the compiler does is tested, not what it gives."""
    with object_store.left_out():
        yield


@pytest.fixture(autouse=True)
def presets_alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hold a test that is marked `presets` to that."""
    if request.node.get_closest_marker("presets") is None:
        yield
        return
    given = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    held = [*vars(request.module).values(), *given.values()]
    assert not any(map(machines.describes_here, held)), "describes this machine: remove the mark"
    with machines.presets_alone() as asked:
        yield
    assert not asked, f"asks for this machine's {', '.join(asked)}: remove the mark `presets`"


@pytest.fixture
def defects_are_warnings(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> pytest.LogCaptureFixture:
    """What users have: a defect is worked around, and told; elsewhere in tests it is raised."""
    from leanconv.settings import Settings
    from leanconv.symbolic import memo

    settings = Settings.from_environment({"HOME": "/"})
    monkeypatch.setattr(memo, "current_settings", lambda: settings)
    monkeypatch.setattr(memo, "_told", set())
    return caplog


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked exhaustive unless `-m` speaks of it, and what is run once.

    The latter is what makes no difference where this machine is taken for another: see the marks.
    """
    covering.leave_pairs(items)
    drawn.leave_drawn(items, drawn.of_tree())
    marks = {"exhaustive"} if "exhaustive" not in config.option.markexpr else set()
    if MACHINE:
        marks |= {"presets", "once"}
        if machines.has_vectors_of_this(MACHINE):
            marks.add("vectors")
    files = {_file(item) for item in items}
    kept = drawn.half(files, drawn.of_tree()) if HALF else files
    wanted, left_out = [], []
    for item in items:
        out = any(map(item.get_closest_marker, marks)) or _file(item) not in kept
        (left_out if out else wanted).append(item)
    if left_out:
        items[:] = wanted
        config.hook.pytest_deselected(items=left_out)
    items.sort(key=lambda item: item.path.name not in LONG)


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
