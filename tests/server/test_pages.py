"""The pages: models, plans, and what happens now, also in a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from leanconv.units import format_bytes, format_ns
from support.served import Running, results, serving, small_net

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    model = small_net(tmp_path_factory.mktemp("models") / "one.onnx")
    with serving([model]) as made:
        results(made.infer("one", {"x": np.ones((1, 3, 8, 8), np.float32)}))
        yield made


def test_the_page_names_models_and_their_plans(served: Running) -> None:
    answer = served.client.get("/")
    assert answer.headers["content-type"].startswith("text/html")
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "<td>one</td>" in answer.text
    assert "batches of 1, 2, 4" in answer.text
    assert "/plans/one/1/0" in answer.text
    plan = served.client.get("/plans/one/1/0")
    assert "The arena over time" in plan.text
    assert "<script" not in plan.text
    assert served.client.get("/plans/one/1/1").status_code == 404
    assert served.client.get("/plans/two/1/0").status_code == 404


def test_the_status_is_what_the_page_shows(served: Running) -> None:
    status = served.client.get("/status").json()
    (model,) = status["models"]
    assert model["answered"] >= 1
    assert 0 < model["p50_ns"] <= model["p99_ns"]
    assert model["plan_bytes"] == served.service.models.found("one", None).plans.held_bytes
    assert "text/javascript" in served.client.get("/page.js").headers["content-type"]
    page = served.client.get("/").text
    shown = status["shown"]
    assert shown["p50-0"] == format_ns(model["p50_ns"])
    assert shown["bytes-0"] == format_bytes(model["plan_bytes"])
    for identity in shown:
        assert f" id={identity}>" in page


def test_headings_are_aligned_with_what_is_below(served: Running) -> None:
    titles = re.findall(r"<th[^>]*>", served.client.get("/").text)
    row = served.client.get("/").text.partition("<tr><td>one")[2].partition("</tr>")[0]
    cells = ["<td>", *re.findall(r"<td[^>]*>", row)]
    assert ["text" in each for each in titles[1:]] == ["text" in each for each in cells[1:]]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_the_page_in_a_browser(served: Running, tmp_path: Path) -> None:
    """The script runs, and shows what the server says now."""
    assert CHROMIUM is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000"]
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    shown = subprocess.run(
        [CHROMIUM, *options, profile, "--dump-dom", f"{served.url}/"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert '<dd id="live">live</dd>' in shown
    latency = served.client.get("/status").json()["shown"]["p99-0"]
    assert f'id="p99-0">{latency}</td>' in shown
