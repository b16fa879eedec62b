"""What is drawn depends on the tree alone, and each of several is drawn for some tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import machines
from support.drawn import digest, main, one_of

SIDES = ("end", "start")


def test_a_tree_draws_the_same_until_a_file_changes(tmp_path: Path) -> None:
    (tmp_path / "src" / "inner").mkdir(parents=True)
    file = tmp_path / "src" / "inner" / "a.py"
    file.write_text("1")
    first = digest(tmp_path)
    (tmp_path / "src" / "inner" / "a.pyc").write_text("what running it leaves behind")
    assert digest(tmp_path) == first
    file.write_text("2")
    assert digest(tmp_path) != first
    file.rename(tmp_path / "src" / "b.py")
    (tmp_path / "src" / "b.py").write_text("1")
    assert digest(tmp_path) != first


def test_each_is_drawn_about_as_often() -> None:
    drawn = [(one_of("a", SIDES, bytes([n])), one_of("b", SIDES, bytes([n]))) for n in range(200)]
    for pair in ((a, b) for a in SIDES for b in SIDES):
        assert 25 < drawn.count(pair) < 75
    assert one_of("a", (), b"") == ""


def test_no_machine_is_drawn_that_has_nothing_to_test(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machines, "why_not", lambda name: "no such code" if name == "a" else "")
    monkeypatch.setattr(machines, "is_here", lambda name: name == "b")
    main(["MACHINES=a b c", "SIDES=end", "PYTHONS="])
    assert capsys.readouterr().out == "MACHINES=c\nSIDES=end\nPYTHONS=\n"
    main(["MACHINES=a b"])
    assert capsys.readouterr().out == "MACHINES=\n"


@pytest.mark.drawn
@pytest.mark.parametrize("number", range(30))
def test_a_third_of_the_cases_is_left(request: pytest.FixtureRequest, number: int) -> None:
    numbers = [
        each.callspec.params["number"]
        for each in request.session.items
        if isinstance(each, pytest.Function) and each.function is request.function
    ]
    if len(numbers) > 1:  # else it is chosen by its name
        assert numbers == list(range(numbers[0], 30, 3))
    assert number in numbers
