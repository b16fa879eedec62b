"""The journal of a run in tiles: its lines, its lock, files that are none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from leanconv.api.tile_journal import Journal, Sums
from leanconv.errors import InputError

FACTS = {"plan": "key", "input 'x'": "memory"}
HEAD = 'leanconv tiles 2 {"plan": "key", "input \'x\'": "memory"}\n'
SUMS = Sums("00000001", "89abcdef")


class StoppedError(Exception):
    pass


@contextmanager
def begun(path: Path, count: int = 20, facts: dict[str, str] = FACTS) -> Iterator[Journal]:
    with Journal(path) as journal:
        journal.begin(facts, count)
        yield journal


def stopped(path: Path, *tiles: int, count: int = 20) -> None:
    with suppress(StoppedError), begun(path, count) as journal:
        journal.finish([(number, SUMS) for number in tiles])
        raise StoppedError


def test_a_journal_is_kept_by_an_error_and_goes_with_the_end(tmp_path: Path) -> None:
    path = tmp_path / "j"
    stopped(path, 3, 12)
    assert path.read_text() == f"{HEAD}3 00000001 89abcdef\n12 00000001 89abcdef\n"
    with begun(path) as journal:
        assert journal.done == {3: SUMS, 12: SUMS}
        assert journal.has_tiles
        assert not journal.is_new
    assert not path.exists()


def test_a_journal_in_which_nothing_began_goes(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path):
        pass
    assert not path.exists()
    with suppress(StoppedError), Journal(path):
        raise StoppedError
    assert not path.exists()
    with suppress(StoppedError), Journal(path) as journal:
        journal.claim()  # a result was made
        raise StoppedError
    assert path.read_bytes() == b""
    with suppress(StoppedError), Journal(path):
        raise StoppedError
    assert path.exists()  # it was there before


def test_a_line_without_an_end_does_not_count(tmp_path: Path) -> None:
    """Of tile 12 it may say 1."""
    path = tmp_path / "j"
    path.write_text(f"{HEAD}3 00000001 89abcdef\n1")
    stopped(path, 5)
    assert path.read_text() == f"{HEAD}3 00000001 89abcdef\n5 00000001 89abcdef\n"
    path.write_text(HEAD[:30])  # killed as it began
    stopped(path, 5)
    assert path.read_text() == f"{HEAD}5 00000001 89abcdef\n"


def test_what_does_not_hold_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "j"
    for _ in range(30):
        with suppress(StoppedError), begun(path) as journal:
            journal.keep({n: SUMS for n in journal.done if n % 2})
            journal.finish([(number, SUMS) for number in range(20)])
            raise StoppedError
    assert path.read_text().count("\n") <= 31


@pytest.mark.parametrize(
    "line",
    ["7" * 6000, "3", "3 0 0", "20 00000001 89abcdef", "-1 00000001 89abcdef", "\0", "", "é"],
)
def test_damaged_lines_are_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "j"
    path.write_text(f"{HEAD}3 00000001 89abcdef\n{line}\n")
    held = path.read_bytes()
    with pytest.raises(InputError, match="line 3 of the journal .* expected"), begun(path):
        pass
    assert path.read_bytes() == held


def test_a_journal_says_of_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "j"
    stopped(path, 3)
    for facts, said in (
        ({**FACTS, "plan": "other"}, "plan was 'key', and is 'other'"),
        ({**FACTS, "input 'x'": "/x.npy from byte 0"}, "input 'x' was 'memory', and is '/x.npy"),
        ({**FACTS, "out for 'y'": "memory"}, "of another network, image or plan; expected"),
    ):
        with pytest.raises(InputError, match="another network, image or plan") as refused:
            with begun(path, facts=facts):
                pass
        assert said in str(refused.value)
    for first in ("leanconv tiles 1 key\n3\n", "leanconv tiles 2 {\n", "leanconv tiles 2 [3]\n"):
        path.write_text(first)
        with pytest.raises(InputError, match="another network"), begun(path):
            pass


def test_what_is_no_journal_is_refused_and_left(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    for text in ("notes", "notes\nof mine\n"):
        path.write_text(text)
        with pytest.raises(InputError, match="no journal"):
            Journal(path)
        assert path.read_text() == text
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for name in ("folder", "fifo", "none/j", "nu\0ll"):
        with pytest.raises(InputError, match="journal"):
            Journal(f"{tmp_path}/{name}")
    with pytest.raises(InputError, match="expected the path of a file"):
        Journal(3)  # type: ignore[arg-type]


# -- one run at a time -----------------------------------------------------------------------------
def test_a_journal_that_is_open_is_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "j", tmp_path / "link"
    with begun(path) as journal:
        os.link(path, other)
        for name in (path, other):
            with pytest.raises(InputError, match="of a run which goes on at this moment"):
                Journal(name)
        journal.finish([(3, SUMS)])
        assert path.read_text().count("\n") == 2
        code = "import sys; from leanconv.api.tile_journal import Journal; Journal(sys.argv[1])"
        found = subprocess.run(
            [sys.executable, "-c", code, str(path)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
        )
        assert "goes on at this moment" in found.stderr
    with Journal(path):
        pass


def test_a_lock_ends_with_its_process_though_a_child_of_it_lives(tmp_path: Path) -> None:
    """A process is killed that has a journal and has forked: the child has no part in it."""
    path = tmp_path / "j"
    code = """if True:
        import os, signal, sys, time
        from leanconv.api.tile_journal import Journal
        journal = Journal(sys.argv[1])
        journal.begin({"plan": "key", "input 'x'": "memory"}, 20)
        child = os.fork()
        if not child:
            os.close(1)  # of which the test awaits the end
            time.sleep(600)
            os._exit(0)
        print(child, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    paths = os.pathsep.join(filter(None, sys.path))
    found = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
    )
    child = int(found.stdout)
    try:
        stopped(path, 5)
        os.kill(child, 0)  # it lives
    finally:
        os.kill(child, 9)
    assert path.read_text() == f"{HEAD}5 00000001 89abcdef\n"


def test_a_forked_child_leaves_the_journal_to_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with begun(path) as journal:
        child = os.fork()
        if not child:
            code = 1
            with suppress(BaseException):
                kept = journal.is_kept
                journal.__exit__(None, None, None)
                try:
                    Journal(path)
                except InputError:
                    code = 0 if not kept else 2
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert path.exists()
        journal.finish([(3, SUMS)])
        assert path.read_text().count("\n") == 2


def test_a_journal_that_ended_meanwhile_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its opening and its lock, the run that had it ends, and removes it."""
    path = tmp_path / "j"
    first, lock = Journal(path), Journal._lock
    first.begin(FACTS, 20)
    first.finish([(3, SUMS)])

    def late(self: Journal, file: object) -> None:
        if first.is_kept:
            first.__exit__(None, None, None)
        lock(self, file)  # type: ignore[arg-type]

    monkeypatch.setattr(Journal, "_lock", late)
    with begun(path) as second:
        assert not second.done
        assert path.read_text() == HEAD
