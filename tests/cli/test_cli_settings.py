"""Settings from the environment; bytes and durations as text."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from leanconv import settings
from leanconv.errors import SpecError
from leanconv.settings import Settings, variables
from leanconv.units import format_bytes, format_ns, parse_bytes


def test_defaults() -> None:
    settings = Settings.from_environment({"HOME": "/home/u", "XDG_CACHE_HOME": "/cache"})
    assert settings.cache_dir.name == "leanconv"
    assert settings.threads is None
    assert settings.target is None
    assert settings.debug is False
    assert settings.cache_bytes > 0
    assert settings.spin_us > 0


def test_every_variable() -> None:
    settings = Settings.from_environment(
        {
            "LEANCONV_CACHE_DIR": "/somewhere",
            "LEANCONV_CACHE_BYTES": "64 MiB",
            "LEANCONV_WEIGHT_CACHE_BYTES": "3 GiB",
            "LEANCONV_PLAN_CACHE_BYTES": "32 MiB",
            "LEANCONV_OUTPUT_CACHE_BYTES": "0",
            "LEANCONV_THREADS": "3",
            "LEANCONV_TARGET": "haswell",
            "LEANCONV_SPIN_US": "0",
            "LEANCONV_DEBUG": "1",
            "LEANCONV_RAISE_DEFECTS": "1",
            "LEANCONV_BENCH_PYTHON": "/opt/python",
        }
    )
    assert settings == Settings(
        cache_dir=Path("/somewhere"),
        cache_bytes=64 * 2**20,
        weight_cache_bytes=3 * 2**30,
        plan_cache_bytes=32 * 2**20,
        output_cache_bytes=0,
        threads=3,
        target="haswell",
        spin_us=0,
        debug=True,
        raise_defects=True,
        bench_python="/opt/python",
    )


def test_an_empty_variable_is_not_set() -> None:
    names = ("CACHE_DIR", "CACHE_BYTES", "THREADS", "TARGET", "SPIN_US", "DEBUG", "BENCH_PYTHON")
    empty = {f"LEANCONV_{name}": "" for name in names}
    home = {"HOME": "/home/u"}
    assert Settings.from_environment({**home, **empty}) == Settings.from_environment(home)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("LEANCONV_THREADS", "0"),
        ("LEANCONV_THREADS", "two"),
        ("LEANCONV_SPIN_US", "-1"),
        ("LEANCONV_DEBUG", "perhaps"),
        ("LEANCONV_CACHE_BYTES", "much"),
        ("LEANCONV_THREADS", "1025"),
        ("LEANCONV_SPIN_US", "10000000000000"),
        ("LEANCONV_CACHE_DIR", "~nobody-of-that-name/cache"),
    ],
)
def test_a_wrong_value_names_its_variable(name: str, text: str) -> None:
    with pytest.raises(SpecError, match=name) as raised:
        Settings.from_environment({"HOME": "/home/u", name: text})
    assert repr(text) in str(raised.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("LEANCONV_TREADS", "LEANCONV_THREADS"),
        ("LEANCONV_CACHE", "LEANCONV_CACHE_DIR"),
        ("LEANCONV_PLAN_BYTES", "LEANCONV_PLAN_CACHE_BYTES"),
        ("leanconv_debug", "LEANCONV_DEBUG"),
    ],
)
def test_a_variable_that_is_no_setting_is_told_once(
    caplog: pytest.LogCaptureFixture, name: str, meant: str
) -> None:
    """With the one that was meant, and all that there are."""
    settings._warn.cache_clear()
    environment = {"HOME": "/home/u", name: "1", "LEANCONV_THREADS": "2", "OTHER": "3"}
    for _ in range(3):
        assert Settings.from_environment(environment).threads == 2
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"{name!r} is no setting" in record.getMessage()
    assert f"did you mean {meant}?" in record.getMessage()
    assert all(known in record.getMessage() for known in variables())


def test_known_variables_are_told_of_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    Settings.from_environment({"HOME": "/home/u", **dict.fromkeys(variables(), "")})
    assert not caplog.records


def test_the_documentation_of_the_settings_names_every_variable() -> None:
    assert all(f"`{name}`" in (Settings.__doc__ or "") for name in variables())


@pytest.mark.parametrize("name", ["LEANCONV_THREADS", "LEANCONV_SPIN_US", "LEANCONV_CACHE_BYTES"])
def test_an_endless_number_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match=name):
        Settings.from_environment({"HOME": "/home/u", name: "9" * 5000})


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (0, 0),
        (4096, 4096),
        ("4096", 4096),
        ("12 MiB", 12 * 2**20),
        ("12mib", 12 * 2**20),
        ("1.5 GB", 1_500_000_000),
        (" 2KiB ", 2048),
        ("9007199254740993 B", 9007199254740993),
    ],
)
def test_parse_bytes(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1 parsec", "1e9", "nan", -1, True, None, 1.5])
def test_parse_bytes_refuses(text: str) -> None:
    with pytest.raises(SpecError, match="expected"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1000 * 2**10, "0.9766 MiB"),
        (1023, "1023 B"),
        (2048, "2 KiB"),
        (6018826, "5.74 MiB"),
        (2**30, "1 GiB"),
    ],
)
def test_format_bytes(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [(12, "12 ns"), (1330, "1.33 us"), (1_330_000, "1.33 ms"), (999_600, "1 ms"), (3e9, "3 s")],
)
def test_format_ns(duration_ns: float, text: str) -> None:
    assert format_ns(duration_ns) == text
