"""Libraries of other builds, and calls of other versions, are refused in words."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zstate
import zstate.jax as zj
from zstate.backends import native
from zstate.jax import ffi
from zstate.layout import bind
from zstate.operations import LSTM_FORWARD

needs_handlers = pytest.mark.skipif(
    zj.unavailable() is not None, reason="built without the XLA handlers"
)
needs_engine = pytest.mark.skipif(
    native.unavailable() is not None, reason="built without a C++ compiler"
)

STALE = """
import warnings
import jax, jax.numpy as jnp, numpy as np, zstate as zs
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    import zstate.jax as zj
assert [each.category for each in found] == [zs.SlowBackendWarning], found
reason = zj.unavailable()
assert "library of XLA handlers was built from other sources" in reason, reason
assert "rebuild the package" in reason and reason in str(found[0].message)
assert zs.show_config(mode="dicts")["jax"]["XLA handlers"] == f"unavailable: {reason}"
assert zs.show_config(mode="dicts")["backends"]["native"]["available"]
x, R = np.full((2, 1, 12), 0.3, "f4"), np.full((12, 3), 0.2, "f4")
found = jax.jit(lambda x, R: zj.lstm(x, R).state)(x, R)
np.testing.assert_allclose(found, zs.lstm(x, R).state, rtol=1e-6)
try:
    zj.lstm(jnp.asarray(x), R, backend="native")
except zs.BackendError as error:
    assert reason in str(error)
else:
    raise AssertionError("no refusal")
"""


@needs_handlers
@needs_engine
def test_handlers_of_another_build_are_not_used(tmp_path: Path) -> None:
    package = Path(zstate.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__", ffi._LIBRARY.name)
    shutil.copytree(package, tmp_path / "zstate", ignore=ignored)
    shutil.copy(native._native.__file__, tmp_path / "zstate")
    stamp = native._native.stamp.encode()
    whole = ffi._LIBRARY.read_bytes()
    assert whole.count(stamp) == 1
    (tmp_path / "zstate" / ffi._LIBRARY.name).write_bytes(whole.replace(stamp, stamp[::-1]))
    done = subprocess.run(
        [sys.executable, "-c", STALE],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@needs_handlers
def test_handlers_are_not_used_without_the_native_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_REASON", "built without its native module")
    assert zj.unavailable() == "built without its native module"


def test_handlers_of_another_interface_are_not_used() -> None:
    class Old:  # says nothing of itself
        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

    class New:
        def zstate_stamp(self) -> bytes:
            raise AssertionError("its form is not known")

        def zstate_interface(self) -> int:
            return native.INTERFACE + 1

    for library, found in ((Old(), None), (New(), native.INTERFACE + 1)):
        reason = ffi._stale(library)  # type: ignore[arg-type]
        words = f"library of XLA handlers has interface {found}, not {native.INTERFACE}"
        assert reason is not None and words in reason


# ---- a call that this version does not know, such as one of a program from a file ----

T, N, H = 3, 2, 4
FIELDS = f"{native.INTERFACE} T N I H D heads reverse has_input_weight"
NUMBERS = [T, N, 4 * H, H, 1, 1, 0, 0]
VALUES = ((T, N, 4 * H), (4 * H, H))


def attributes_of_an_lstm() -> dict[str, Any]:
    x, R = (np.zeros(shape) for shape in VALUES)
    layout = bind(LSTM_FORWARD, (x, R, *[None] * 7), None)
    words, numbers = native.encoded(layout, {"source": x.shape, "recurrent_weight": R.shape})
    return {
        "cell": np.array(words, np.int64),
        "numbers": np.array(numbers, np.float64),
        "fields": FIELDS,
        "problem": NUMBERS,
        "inputs": "source recurrent_weight",
        "results": "result.0",
    }


ATTRIBUTES = attributes_of_an_lstm() if native.unavailable() is None else {}
CELL = ATTRIBUTES.get("cell", np.zeros(9, np.int64))


def changed(place: int, number: int) -> dict[str, Any]:
    words = CELL.copy()
    words[place] = number
    return {"cell": words}


_TABLES = "the tables of a cell: "
OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "another interface": ({"fields": FIELDS.replace(str(native.INTERFACE), "9")}, "attributes"),
    "another field": ({"fields": FIELDS + " blocks"}, "attributes"),
    "fields in another order": ({"fields": FIELDS.replace("T N", "N T")}, "attributes"),
    "one more number": ({"problem": [*NUMBERS, 0]}, "attributes"),
    "one more attribute": ({"heads": "1"}, "attributes"),
    "other instructions": (changed(0, 3), _TABLES),
    "a gradient's programs": (changed(1, 1), _TABLES),
    "a hundred gates": (changed(2, 100), _TABLES),
    "gates twice": (changed(3, int(CELL[4])), _TABLES),
    "half a cell": ({"cell": CELL[: len(CELL) // 2]}, _TABLES + "too few numbers"),
    "more than a cell": ({"cell": np.append(CELL, 0)}, _TABLES + "too many numbers"),
    "no steps back": ({"problem": [-1, *NUMBERS[1:]]}, "impossible sizes"),
    "three directions": ({"problem": [*NUMBERS[:4], 3, *NUMBERS[5:]]}, "impossible sizes"),
    "no heads": ({"problem": [*NUMBERS[:5], 0, *NUMBERS[6:]]}, "impossible sizes"),
    "heads of another size": ({"problem": [*NUMBERS[:5], 2, *NUMBERS[6:]]}, "a projected source"),
    "a name": ({"inputs": "source resets"}, "operands"),
    "a name too few": ({"inputs": "source"}, "operands"),
    "a name too many": ({"inputs": "source recurrent_weight mask"}, "operands"),
    "a result": ({"results": "states"}, "operands"),
}


def call(attributes: dict[str, Any]) -> Any:
    rng = np.random.default_rng(1)
    values = [jnp.asarray(rng.normal(size=shape)) for shape in VALUES]
    problem = np.array(attributes["problem"], np.int64)
    made = jax.ShapeDtypeStruct((T, N, H), values[0].dtype)
    run = jax.ffi.ffi_call("zstate_forward", (made,))
    return values, run(*values, **{**attributes, "problem": problem})[0]


@needs_handlers
def test_a_call_as_this_version_has_it() -> None:
    (x, R), found = call(ATTRIBUTES)
    np.testing.assert_allclose(found, zj.lstm(x, R, backend="reference").state, rtol=1e-12)


@needs_handlers
@pytest.mark.parametrize("what", OTHERS)
def test_a_call_of_another_version_is_refused(what: str) -> None:
    change, words = OTHERS[what]
    if words in ("attributes", "operands"):
        words = f"the {words} of a call are not those of this version"
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"zstate: {words}"):
        call(ATTRIBUTES | change)
