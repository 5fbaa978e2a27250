"""Files on a hostile machine: no room, no folder, no memory, a killed writer, many writers; and
sizes that no machine has."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zstate as zs
from zstate.graph import storage
from zstate.graph.files import _checksum

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="of POSIX files")


def small(value: float = 1.0, size: int = 3) -> zs.Graph:
    g = zs.Graph()
    g.variable(np.full(size, value), name="v")
    return g


def write_header(path: Path, header: dict[str, Any], size: int) -> None:
    """A sparse file: a header, and so many bytes behind it that nobody wrote."""
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + size)


LARGE = {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "expected a file that zstate saved, got another safetensors file"),
        ({"format": "zstate", "version": "7"}, "expected format version 1, got version '7'"),
        ({"format": "zstate", "version": "1"}, "an inconsistent one"),
        (
            {"format": "zstate", "version": "1", "structure": '{"kind":"graph","nodes":[]}'},
            r"an inconsistent one: array a is .*, its node says None",
        ),
    ],
)
def test_a_large_file_is_refused_before_its_arrays_are_read(
    metadata: dict[str, str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_header(tmp_path / "f", {"__metadata__": metadata, "a": LARGE}, 1 << 42)
    began = time.monotonic()
    with pytest.raises(zs.GraphError, match=message):
        zs.Graph.load(tmp_path / "f")
    assert time.monotonic() - began < 5
    assert "panicked" not in capfd.readouterr().err


def test_more_than_there_is_memory_for_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small().save(tmp_path / "g")

    def no_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(np, "fromfile", no_memory)
    with pytest.raises(zs.GraphError, match=r"\[load\] .*: its arrays need 24 bytes of memory"):
        zs.Graph.load(tmp_path / "g")


@pytest.mark.parametrize(
    "head", [b"", b"\0" * 7, struct.pack("<Q", 2**63), struct.pack("<Q", 10**8 + 1), b"\xff" * 9]
)
def test_a_header_longer_than_the_file_is_refused(head: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(head)
    with pytest.raises(zs.GraphError, match="expected a whole safetensors file, got one that cann"):
        zs.Graph.load(tmp_path / "f")


@pytest.mark.parametrize("shape", [[0, 2**56, 2**10], [2**31, 2**31, 2], [2**63], [2**80]])
def test_a_saved_shape_beyond_all_memory_is_refused(shape: list[int], tmp_path: Path) -> None:
    """With a checksum that fits, as somebody who knows the format would make it."""
    g = zs.Graph()
    x = g.placeholder(shape=(2, 3, 4), name="x")
    (h,) = g.lstm(x, recurrent_weight=g.constant(np.zeros((4, 1), np.float32)))
    assert h.shape == (2, 3, 1)
    g.save(tmp_path / "g")
    arrays, metadata = storage.read(tmp_path / "g")
    structure = json.loads(metadata["structure"])
    structure["nodes"][0]["results"] = [[shape, "float32"]]
    text = json.dumps(structure)
    metadata.update(structure=text, sha256=_checksum(text, arrays))
    storage.write(tmp_path / "g", arrays, metadata)
    with pytest.raises(zs.GraphError, match=r"\[load\] .*shape: expected fewer than 2\^63 bytes"):
        zs.Graph.load(tmp_path / "g")


@posix_only
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_saved_file_follows_the_umask(umask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        small().save(tmp_path / "g")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "g").stat().st_mode) == mode


def test_a_missing_folder_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "no" / "such" / "g"
    with pytest.raises(
        zs.GraphError, match=r"^\[save\] .*such/g': cannot be written: No such file"
    ):
        small().save(path)
    with pytest.raises(OSError, match="cannot be written") as caught:  # as any failed write
        small().save(path)
    assert caught.value.errno == errno.ENOENT


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 300])
def test_what_is_no_path_is_one_line(path: str) -> None:
    with pytest.raises(zs.GraphError, match=r"^\[save\] .*: cannot be written: "):
        small().save(path)


def test_a_folder_in_the_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "g").mkdir()
    with pytest.raises(zs.GraphError, match=r"^\[save\] .*g': cannot be written: "):
        small().save(tmp_path / "g")
    assert [path.name for path in tmp_path.iterdir()] == ["g"]


NO_ROOM = """
import resource, sys
import numpy as np
import zstate as zs
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
g = zs.Graph()
g.variable(np.zeros(100_000), name="v")
try:
    g.save(sys.argv[1])
except zs.GraphError as error:
    print(error)
"""


@posix_only
def test_no_room_is_one_line_and_leaves_the_old_file(tmp_path: Path) -> None:
    small().save(tmp_path / "g")
    before = (tmp_path / "g").read_bytes()
    command = [sys.executable, "-c", NO_ROOM, str(tmp_path / "g")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"[save] {str(tmp_path / 'g')!r}: cannot be written: File too large\n"
    assert (tmp_path / "g").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["g"]


SAVING = """
import os, sys
import numpy as np
import zstate as zs
g = zs.Graph()
g.variable(np.zeros(1_000_000), name="v")
sync = os.fsync
def announce(number):
    print("ready", flush=True)
    sys.stdin.read()
os.fsync = announce
g.save(sys.argv[1])
"""


@posix_only
def test_killed_writers_leave_no_growing_pile(tmp_path: Path) -> None:
    for _ in range(3):
        command = [sys.executable, "-c", SAVING, str(tmp_path / "g")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            left = [path for path in tmp_path.iterdir() if path.name != "g"]
            assert len(left) == 1  # what the one before left is gone, this one's is not
            small().save(tmp_path / "g")
            assert left[0].exists()  # nobody takes a file away from a live writer
            os.kill(writer.pid, signal.SIGKILL)
    small(2.0).save(tmp_path / "g")
    assert [path.name for path in tmp_path.iterdir()] == ["g"]
    assert zs.Graph.load(tmp_path / "g").variables()["v"].tolist() == [2, 2, 2]


def test_many_writers_leave_one_whole_file(tmp_path: Path) -> None:
    graphs = [small(float(k), 1000 * (k + 1)) for k in range(4)]

    def save(k: int) -> None:
        for _ in range(20):
            graphs[k].save(tmp_path / "g")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(save, range(4)))
    found = zs.Graph.load(tmp_path / "g").variables()["v"]
    assert (found == len(found) // 1000 - 1).all()
    assert [path.name for path in tmp_path.iterdir()] == ["g"]


@pytest.mark.parametrize("path", [None, 5, b"graph"], ids=repr)
def test_what_is_no_path(path: Any) -> None:
    g = small()
    with pytest.raises(zs.DTypeError, match=r"\[save\] path: expected a str or a path, got"):
        g.save(path)
    for load in (zs.Graph.load, zs.Executable.load):
        with pytest.raises(zs.DTypeError, match=r"\[load\] path: expected a str or a path, got"):
            load(path)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    for load in (zs.Graph.load, zs.Executable.load):
        with pytest.raises(zs.GraphError, match=r"\[load\] .*got one .*: it is a folder"):
            load(tmp_path)
