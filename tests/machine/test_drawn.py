"""What is drawn depends on the tree alone, and each of several is drawn for some tree."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from support import machines
from support.drawn import a_third, digest, half, main, one_of

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


def test_half_of_the_files_is_drawn() -> None:
    files = [f"tests/test_{letter}.py" for letter in "abcde"]
    drawn = Counter(name for n in range(200) for name in half(files, bytes([n])))
    assert all(80 < drawn[name] < 160 for name in files)
    assert sum(drawn.values()) == 3 * 200
    assert half(files[:1], b"") == set(files[:1])


def test_no_machine_is_drawn_that_has_nothing_to_test(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machines, "why_not", lambda name: "no such code" if name == "a" else "")
    monkeypatch.setattr(machines, "is_here", lambda name: name == "b")
    main(["MACHINES=a b c", "SIDES=end", "PYTHONS="])
    assert capsys.readouterr().out == "MACHINES=c\nSIDES=end\nPYTHONS=\n"
    main(["MACHINES=a b"])
    assert capsys.readouterr().out == "MACHINES=\n"


def test_each_case_is_drawn_about_as_often_and_each_value_always() -> None:
    cases = [(size, sign) for size in (*range(9), 8) for sign in "+-~"]
    names = [str(number) for number in range(len(cases))]
    drawn: Counter[int] = Counter()
    for n in range(200):
        found = a_third(names, cases, bytes([n]))
        assert 10 <= len(found) <= 13  # a case with a new value is one more now and then
        assert {cases[number][0] for number in found} == set(range(9))
        assert {cases[number][1] for number in found} == {"+", "-", "~"}
        drawn.update(found)
    assert all(25 < drawn[number] < 125 for number in range(len(cases)))
    assert a_third(names[:3], cases[:3], b"") == {0, 1, 2}
    assert len(a_third(names[:4], [(n,) for n in range(4)], b"")) == 2


@pytest.mark.drawn
@pytest.mark.parametrize("number", range(30))
def test_a_third_of_the_cases_is_left(request: pytest.FixtureRequest, number: int) -> None:
    numbers = [
        each.callspec.params["number"]
        for each in request.session.items
        if isinstance(each, pytest.Function) and each.function is request.function
    ]
    assert number in numbers
    if len(numbers) > 1:  # else it is chosen by its name
        assert len(set(numbers)) in (10, 20, 30)  # drawn, the others, with them


@pytest.mark.drawn
@pytest.mark.pairs
@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("sign", "+-")
@pytest.mark.parametrize("side", ["left", "right"])
def test_of_pairs_a_third_is_left(
    request: pytest.FixtureRequest, number: int, sign: str, side: str
) -> None:
    left = [
        each.callspec.params
        for each in request.session.items
        if isinstance(each, pytest.Function) and each.function is request.function
    ]
    assert {"number": number, "sign": sign, "side": side} in left
    if len(left) in range(2, 16):
        assert {each["sign"] for each in left} == {"+", "-"}
        assert {each["side"] for each in left} == {"left", "right"}
