"""The native module as it was built: what the compiler and the linker were told to protect."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from zstate.backends import native

pytestmark = [
    pytest.mark.skipif(native.unavailable() is not None, reason="built without a C++ compiler"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads an ELF file"),
    pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf"),
]


def readelf(*options: str) -> str:
    command = ["readelf", "--wide", *options, native._native.__file__]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_addresses_are_bound_at_once_and_then_read_only() -> None:
    assert "GNU_RELRO" in readelf("--segments")
    assert re.search(r"\(FLAGS\).*BIND_NOW|\(FLAGS_1\).*\bNOW\b", readelf("--dynamic"))


def test_no_memory_is_written_and_run() -> None:
    stack = re.search(r"GNU_STACK.*", readelf("--segments"))
    assert stack is not None and "RWE" not in stack[0]
    assert not re.search(r"LOAD.*RWE", readelf("--segments"))


def test_the_stack_is_protected() -> None:
    assert "__stack_chk_fail" in readelf("--dyn-syms")


def test_copies_of_memory_are_checked_where_their_size_is_known() -> None:
    assert re.search(r"__\w+_chk\b(?<!__stack_chk)", readelf("--dyn-syms"))
