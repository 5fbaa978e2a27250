"""What an installation says about itself, and that it says when it is slow."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest

import zstate as zs
from zstate.backends import native, slow

ROOT = Path(__file__).parents[2]


def test_show_config_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert zs.show_config() is None
    printed = capsys.readouterr().out
    assert printed.startswith(f"zstate: {zs.__version__}\n")
    assert f"numpy: {np.__version__}" in printed
    assert "  reference: available\n" in printed
    for backend in ("cuda", "native"):
        assert re.search(rf"^  {backend}: (available|unavailable: .+)$", printed, re.MULTILINE)


def test_show_config_as_a_dict(monkeypatch: pytest.MonkeyPatch) -> None:
    found = zs.show_config(mode="dicts")
    assert found["backends"]["reference"] == {"available": True, "reason": None}
    if native.unavailable() is None:
        engine = found["native engine"]
        assert engine["instruction set"] == native._native.isa()
        assert engine["threads"] == zs.get_num_threads()
        assert re.match(r"(GNU|Clang|AppleClang) \d+\.", engine["compiler"])
        assert "-ffp-contract=fast" in engine["flags of the engines"].split()
        assert set(native._native.supported_isas()) <= set(engine["instruction sets built"].split())
        assert re.fullmatch("[0-9a-f]{16}", engine["digest of its sources"])
        assert any(Path(native._native.__file__).parent.glob("libzstate_xla.*")) == (
            "no XLA handlers" not in engine["options"]
        )
    monkeypatch.setattr(native, "_REASON", "it is broken")
    found = zs.show_config(mode="dicts")
    assert found["backends"]["native"] == {"available": False, "reason": "it is broken"}
    assert found["native engine"] == "missing"
    with pytest.raises(zs.OptionError, match="mode: expected 'stdout' or 'dicts', got 'json'"):
        zs.show_config(mode="json")  # type: ignore[call-overload]


def test_show_config_names_jax() -> None:
    jax = pytest.importorskip("jax")
    import zstate.jax as zj

    found = zs.show_config(mode="dicts")["jax"]
    assert found["version"] == jax.__version__
    assert (found["XLA handlers"] == "available") == (zj.unavailable() is None)


def test_show_config_names_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    class Installed:
        def read_text(self, name: str) -> str:
            return "Wheel-Version: 1.0\nTag: cp312-abi3-manylinux_2_28_x86_64\n" * (name == "WHEEL")

    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.distribution", lambda name: Installed())
    assert zs.show_config(mode="dicts")["wheel"] == ["cp312-abi3-manylinux_2_28_x86_64"]
    monkeypatch.setattr("importlib.metadata.distribution", missing)
    assert zs.show_config(mode="dicts")["wheel"] == "none: not an installed package"


def test_without_torch_and_with_a_broken_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise OSError("libcudart.so is missing")

    monkeypatch.setattr("zstate.config.import_module", broken)
    found = zs.show_config(mode="dicts")["torch"]
    assert found == "installed, but cannot be used: libcudart.so is missing"
    assert zs.show_config(mode="dicts")["jax"].startswith("installed, but cannot be used: lib")
    monkeypatch.setattr("zstate.config.find_spec", lambda name: None)
    found = zs.show_config(mode="dicts")
    assert found["torch"] == found["jax"] == "not installed"


CALLS = """
import sys, warnings
sys.modules["zstate._native"] = None
import numpy as np, zstate as zs
rng = np.random.default_rng(0)
def call(T, N, H, backend=None):
    x, W, R = (rng.normal(size=s) / 8 for s in [(T, N, H), (4 * H, H), (4 * H, H)])
    zs.lstm(x, R, input_weight=W, backend=backend)
"""


def run(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", CALLS + code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_the_reference_backend_warns_once_where_the_native_one_is_missing() -> None:
    done = run("call(1, 1, 4)\ncall(10, 8, 64)\ncall(10, 8, 64)\ncall(11, 8, 64)")
    assert done.returncode == 0
    assert done.stderr.count("SlowBackendWarning") == 1
    assert done.stderr.startswith("<string>:")  # the caller's line, not one of the package
    for part in ("without its native module", "C++ compiler", "backend='reference'"):
        assert part in done.stderr


@pytest.mark.parametrize(
    "code",
    [
        "call(10, 8, 64, 'reference')",
        "call(1, 1, 4)",
        "warnings.simplefilter('ignore', zs.SlowBackendWarning)\ncall(10, 8, 64)",
    ],
)
def test_there_are_ways_to_silence_it(code: str) -> None:
    assert run(code).stderr == ""


def test_it_can_be_an_error() -> None:
    done = run("call(10, 8, 64)", "-W", "error::RuntimeWarning")
    assert done.returncode == 1 and "SlowBackendWarning" in done.stderr


def test_no_warning_where_the_native_engine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    if native.unavailable() is not None:
        pytest.skip("no native engine")
    monkeypatch.setattr(slow, "_warned", False)
    x, R = np.ones((10, 8, 64)), np.ones((64, 64)) / 64
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        zs.single_gate_rnn(x, R)
        zs.single_gate_rnn(x, R, backend="reference")


def test_the_version_stands_in_one_place() -> None:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert "version" in project["project"]["dynamic"]
    source = ROOT / project["tool"]["scikit-build"]["metadata"]["version"]["input"]
    found = re.findall(r'^__version__ = "(.+)"$', source.read_text(), re.MULTILINE)
    assert found == [zs.__version__]
    urls = project["project"]["urls"]
    assert {"Homepage", "Documentation", "Issues", "Changelog"} <= set(urls)
    assert all(url.startswith("https://") for url in urls.values())
