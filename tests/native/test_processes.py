"""The native engine in processes of its own: forks, memory, and what the environment sets."""

from __future__ import annotations

import os

import pytest

from tests.native.processes import LSTM, fresh
from zstate.backends import native

pytestmark = pytest.mark.skipif(
    native.unavailable() is not None, reason="built without a C++ compiler"
)
ISAS = [] if native.unavailable() else native._native.supported_isas()


def test_a_forked_child_computes() -> None:
    code = (
        LSTM
        + """
zs.set_num_threads(2)
x, R, there = lstm(T=30, N=40)
child = os.fork()
if child == 0:
    same = (zs.lstm(x, R, backend="native").state == there.state).all()
    os._exit(0 if same else 3)
print("status", os.waitpid(child, 0)[1], (zs.lstm(x, R).state == there.state).all())
"""
    )
    assert fresh(code).stdout.strip() == "status 0 True"


def test_memory_does_not_grow() -> None:
    code = (
        LSTM
        + """
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")
d = zs.LSTMDescriptor(training=True)
def once(k):
    x, R, (h, c, z) = lstm(T=3 + k % 5, N=1 + k % 3, H=8 + k % 4, descriptor=d)
    zs.lstm_gradients(x, R, h, z, c, descriptor=d, backend="native")
for k in range(1000): once(k)
before = resident()
for k in range(10000): once(k)
print(resident() - before)
"""
    )
    grown = int(fresh(code).stdout)
    assert grown < 2 << 20, f"{grown} bytes more after 10,000 calls"


def peak_beyond_results(steps: int, training: bool) -> int:
    """How far the process rose above what it held when the results were there, in bytes."""
    code = (
        LSTM
        + f"""
def status(key):
    return int(next(l for l in open("/proc/self/status") if l.startswith(key)).split()[1]) * 1024
zs.set_num_threads(2)
T, N, H, training = {steps}, 16, 128, {training}
d = zs.LSTMDescriptor(training=training)
x, R, W = (r.normal(size=s).astype("f4") for s in ((T, N, H), (4 * H, H), (4 * H, H)))
more = dict(input_weight=W, descriptor=d, backend="native")
there = zs.lstm(x[:2], R, input_weight=W, descriptor=d, backend="native")
if training:
    zs.lstm_gradients(x[:2], R, there.state, there.training_state, there.cell, **more)
    there = zs.lstm(x, R, input_weight=W, descriptor=d, backend="native")
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
if training:
    kept = zs.lstm_gradients(x, R, there.state, there.training_state, there.cell, **more)
    size = sum(a.nbytes for a in kept if a is not None)
else:
    kept = zs.lstm(x, R, input_weight=W, backend="native")
    size = kept.state.nbytes
print(status("VmHWM") - before - size)
"""
    )
    done = fresh(code)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="needs Linux")
def test_temporary_memory_of_inference_does_not_grow_with_time() -> None:
    short, long = peak_beyond_results(200, False), peak_beyond_results(2000, False)
    gates = 1800 * 16 * 4 * 128 * 4
    assert long - short < gates / 20


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="needs Linux")
def test_temporary_memory_of_gradients_is_that_of_the_gates() -> None:
    short, long = peak_beyond_results(200, True), peak_beyond_results(2000, True)
    gates = 1800 * 16 * 4 * 128 * 4
    assert long - short < gates * 1.1


def test_an_unknown_isa_is_refused() -> None:
    done = fresh(LSTM + "lstm()", ZSTATE_ISA="mmx")
    assert done.returncode != 0
    assert "BackendError: ZSTATE_ISA=mmx: this machine and build support" in done.stderr


def test_an_isa_can_be_forced() -> None:
    for name in ISAS:
        code = LSTM + "lstm(); from zstate import _native; print(_native.isa())"
        assert fresh(code, ZSTATE_ISA=name).stdout.strip() == name


def test_the_number_of_threads_comes_from_the_environment() -> None:
    code = "import zstate as zs; print(zs.get_num_threads())"
    assert fresh(code, OMP_NUM_THREADS="3").stdout.strip() == "3"
    cores = len(os.sched_getaffinity(0))
    code = f"import os; os.environ.pop('OMP_NUM_THREADS', None); {code}"
    assert 1 <= int(fresh(code).stdout) <= cores
    one = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); " + code
    assert fresh(one).stdout.strip() == "1"
