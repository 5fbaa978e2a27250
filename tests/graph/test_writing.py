"""A saved file appears whole or not at all, with the permissions of any other file, and what a
killed process left behind is removed by the next one."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import zstate as zs
from zstate.graph import storage


def graph(size: int = 4) -> zs.Graph:
    g = zs.Graph()
    g.variable(np.random.default_rng(1).normal(size=(size, size)), name="w")
    return g


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_files_follow_the_umask(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        graph().save(tmp_path / "g")
    finally:
        os.umask(before)
    assert (tmp_path / "g").stat().st_mode & 0o777 == 0o666 & ~umask


@pytest.mark.skipif(os.name != "posix", reason="processes of POSIX")
def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from zstate.graph import storage
with storage.replacing(sys.argv[1]) as temporary:
    temporary.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    target = tmp_path / "g [1]"
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code, str(target)], check=False)
        assert done.returncode == -9
        assert len(list(tmp_path.iterdir())) == 1  # its own, and no older one
    other = tmp_path / f".{target.name}.{platform.node()}.{os.getppid()}.0"
    other.mkdir()  # of a process that is alive
    strange = tmp_path / f".{target.name}.{platform.node()}.x.0"
    strange.mkdir()
    graph().save(target)
    assert set(tmp_path.iterdir()) == {target, other, strange}
    np.testing.assert_array_equal(zs.Graph.load(target).variables()["w"], graph().variables()["w"])


@pytest.mark.skipif(os.name != "posix", reason="limits of POSIX")
def test_a_full_disk_keeps_the_old_file_and_says_so_in_a_line(tmp_path: Path) -> None:
    target = tmp_path / "g"
    graph().save(target)
    before = target.read_bytes()
    code = """
import resource, sys
import numpy as np
import zstate as zs
g = zs.Graph()
g.variable(np.zeros((200, 200)))
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    g.save(sys.argv[1])
except OSError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(target)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"cannot write {str(target)!r}: ")
    assert done.stdout.count("\n") == 1
    assert target.read_bytes() == before
    assert list(tmp_path.iterdir()) == [target]


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such directory: .*nowhere'"):
        graph().save(tmp_path / "nowhere" / "g")


def test_nothing_replaces_a_file_that_could_not_be_written(tmp_path: Path) -> None:
    target = tmp_path / "f"
    target.write_text("old")
    with pytest.raises(UnicodeEncodeError), storage.replacing(target) as temporary:
        temporary.write_text("new\udc80", encoding="utf-8")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
