"""The cache of machine code on disk: found again, rebuilt when damaged, written by two at once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from zstate.backends.cuda import compiler


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Compilations that really happened; the compiler itself is replaced."""
    done: list[str] = []

    def compile_text(text: str, architecture: str) -> bytes:
        done.append(architecture)
        return f"code of {len(text)} for {architecture}".encode()

    monkeypatch.setenv("ZSTATE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiler, "compile_text", compile_text)
    monkeypatch.setattr(compiler, "_version", lambda: "13.0")
    return done


def entries(folder: Path) -> list[Path]:
    return sorted((folder / "cuda").iterdir())


def test_the_second_time_nothing_is_built(builds: list[str], tmp_path: Path) -> None:
    first = compiler.machine_code("constexpr int H = 1;\n", "sm_90")
    assert compiler.machine_code("constexpr int H = 1;\n", "sm_90") == first
    assert builds == ["sm_90"]
    assert len(entries(tmp_path)) == 1


def test_everything_that_decides_the_code_is_in_the_key(
    builds: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.machine_code("constexpr int H = 1;\n", "sm_90")
    compiler.machine_code("constexpr int H = 2;\n", "sm_90")
    compiler.machine_code("constexpr int H = 1;\n", "sm_80")
    monkeypatch.setattr(compiler, "_version", lambda: "13.1")
    compiler.machine_code("constexpr int H = 1;\n", "sm_90")
    assert len(builds) == len(entries(tmp_path)) == 4


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_entry_is_built_again(builds: list[str], tmp_path: Path, damage: str) -> None:
    good = compiler.machine_code("", "sm_90")
    (path,) = entries(tmp_path)
    content = path.read_bytes()
    damaged = {"cut": content[:-3], "flipped": content[:-1] + b"?", "empty": b""}
    path.write_bytes(damaged[damage])
    assert compiler.machine_code("", "sm_90") == good
    assert len(builds) == 2
    assert path.read_bytes() == content


def test_many_writers_leave_one_good_entry(builds: list[str], tmp_path: Path) -> None:
    threads = [threading.Thread(target=compiler.machine_code, args=("", "sm_90")) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (path,) = entries(tmp_path)  # no temporary file is left either
    assert compiler.load(path) is not None


def test_a_folder_that_cannot_be_written_is_no_error(
    builds: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("ZSTATE_CACHE_DIR", str(blocked))
    assert compiler.machine_code("", "sm_90")


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ZSTATE_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert compiler.cache_folder() == tmp_path / "zstate"


def test_the_source_includes_nothing() -> None:
    printed = {compiler.ARGUMENTS: "struct Arguments {};\n", compiler.CELL: "struct Pass {};\n"}
    text = compiler.source("constexpr int kHidden = 1;\n", compiler.scan_texts(), printed)
    assert "#include" not in text
    for part in ("d_sigmoid", "kHidden = 1;", *printed.values(), "__global__"):
        assert part in text
