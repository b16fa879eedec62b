"""Control groups of both versions, from made-up trees of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from leanconv.codegen import host, process_limits
from leanconv.codegen.process_limits import group_folders, quota_cores

V2 = "30 23 0:26 {root} {point} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "31 23 0:27 {root} {point} rw,nosuid - cgroup cgroup rw,{controllers}"


@pytest.fixture
def process(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    folder.mkdir()
    return folder


def described(process: Path, groups: str, *mounts: str) -> Path:
    (process / "cgroup").write_text(groups)
    rows = ["22 1 8:1 / / rw - ext4 /dev/sda1 rw", *mounts]
    (process / "mountinfo").write_text("".join(f"{row}\n" for row in rows))
    return process


def limited(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


@pytest.mark.parametrize(
    ("own", "above", "root", "cores"),
    [
        ("max 100000", "max 100000", "max 100000", None),
        ("200000 100000", "max 100000", "max 100000", 2),
        ("max 100000", "300000 100000", "max 100000", 3),
        ("400000 100000", "150000 100000", "200000 100000", 1),
        ("50000 100000", "max 100000", "max 100000", 1),
        ("25000 10000", "max 100000", "max 100000", 2),
        ("", "nonsense", "100000 0", None),
    ],
)
def test_the_least_quota_of_version_2(
    process: Path, tmp_path: Path, own: str, above: str, root: str, cores: int | None
) -> None:
    point = tmp_path / "sys"
    described(process, "0::/a.slice/b.scope\n", V2.format(root="/", point=point))
    limited(point / "a.slice" / "b.scope", cpu__max=own)
    limited(point / "a.slice", cpu__max=above)
    limited(point, cpu__max=root)
    assert quota_cores(process) == cores


@pytest.mark.parametrize(
    ("own", "above", "cores"),
    [("-1", "-1", None), ("100000", "-1", 1), ("-1", "250000", 2), ("800000", "400000", 4)],
)
def test_the_least_quota_of_version_1(
    process: Path, tmp_path: Path, own: str, above: str, cores: int | None
) -> None:
    point = tmp_path / "sys" / "cpu,cpuacct"
    described(
        process,
        "4:memory:/other\n3:cpu,cpuacct:/docker/x\n0::/\n",
        V1.format(root="/", point=point, controllers="cpu,cpuacct"),
        V1.format(root="/", point=tmp_path / "sys" / "memory", controllers="memory"),
        V2.format(root="/", point=tmp_path / "sys" / "unified"),
    )
    for folder, quota in ((point / "docker" / "x", own), (point / "docker", above)):
        limited(folder, cpu__cfs_quota_us=quota, cpu__cfs_period_us="100000")
    assert quota_cores(process) == cores


def test_a_container_sees_its_own_group_as_the_mounts_root(process: Path, tmp_path: Path) -> None:
    """The path in `cgroup` is the host's, and the mount begins at that group."""
    point = tmp_path / "sys" / "cpu"
    mount = V1.format(root="/docker/x", point=point, controllers="cpu")
    described(process, "3:cpu:/docker/x/inner\n", mount)
    limited(point, cpu__cfs_quota_us="300000", cpu__cfs_period_us="100000")
    limited(point / "inner", cpu__cfs_quota_us="200000", cpu__cfs_period_us="100000")
    assert quota_cores(process) == 2
    assert group_folders("cpu", process) == ((point / "inner", 1), (point, 1))


@pytest.mark.parametrize("path", ["/elsewhere", "/../../sibling", "/docker"])
def test_a_group_outside_the_mount(process: Path, tmp_path: Path, path: str) -> None:
    point = tmp_path / "sys"
    described(process, f"0::{path}\n", V2.format(root="/docker/x", point=point))
    limited(point, cpu__max="100000 50000")
    assert group_folders("cpu", process) == ((point, 2),)
    process_limits._cpu_folders.cache_clear()
    assert quota_cores(process) == 2


def test_spaces_in_the_folder_of_a_mount(process: Path, tmp_path: Path) -> None:
    point = tmp_path / "a b"
    described(process, "0::/\n", V2.format(root="/", point=str(point).replace(" ", r"\040")))
    limited(point, cpu__max="100000 100000")
    assert quota_cores(process) == 1


@pytest.mark.parametrize("groups", ["", "0::/\n", "what is this", "3:memory:/a\n"])
def test_nothing_is_known(process: Path, groups: str) -> None:
    described(process, groups, "too short", "1 2 - x")
    assert group_folders("cpu", process) == ()
    assert quota_cores(process) is None
    assert quota_cores(process / "nowhere") is None


def test_usable_cores_follow_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for quota, cores in ((None, 8), (3, 3), (1, 1), (64, 8)):
        monkeypatch.setattr(host, "quota_cores", lambda quota=quota: quota)
        assert host.usable_cores() == cores
