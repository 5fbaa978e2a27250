"""The native engine under disturbance: forks, signals, limits, other threads, and an interpreter
that ends, each in a process of its own."""

from __future__ import annotations

import os
import sys

import pytest

from tests.native.processes import LSTM, fresh
from zstate.backends import native

pytestmark = pytest.mark.skipif(
    native.unavailable() is not None, reason="built without a C++ compiler"
)


def test_forks_beside_running_calls() -> None:
    """A child gets the list of kept blocks as it is between two changes: its results are apart."""
    code = (
        LSTM
        + """
import threading, time
zs.set_num_threads(1)
x, R = r.normal(size=(8, 64, 512)).astype("f4"), r.normal(size=(512, 128)).astype("f4")
d = zs.LSTMDescriptor(training=True)
call = lambda: zs.lstm(x, R, descriptor=d, backend="native")
call(), call()
end = threading.Event()
def work():
    while not end.is_set(): call()
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
bad = 0
stop = time.monotonic() + 3
while time.monotonic() < stop:
    child = os.fork()
    if child == 0:
        arrays = [a for _ in range(3) for a in call()]
        spans = sorted((a.ctypes.data, a.ctypes.data + a.nbytes) for a in arrays)
        os._exit(any(b[0] < a[1] for a, b in zip(spans, spans[1:])))
    bad += os.waitpid(child, 0)[1] != 0
end.set()
for thread in threads: thread.join()
print("bad", bad)
"""
    )
    done = fresh(code)
    assert done.stdout.strip() == "bad 0", done.stderr


# So little room that no stack of a thread fits.
LIMIT = """
import resource
def allow(more):
    pages = int(open("/proc/self/statm").read().split()[0])
    size = pages * os.sysconf("SC_PAGESIZE") + more
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux")
def test_threads_that_cannot_start_are_done_without() -> None:
    code = (
        LSTM
        + LIMIT
        + """
from zstate import _native
zs.set_num_threads(1)
x, R, there = lstm(T=30, N=40)
zs.set_num_threads(3)
allow(1 << 20)
fewer = zs.lstm(x, R, backend="native").state
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
tasks = len(os.listdir("/proc/self/task"))
_native.forget_paths()
more = zs.lstm(x, R, backend="native").state
print((fewer == there.state).all(), (more == there.state).all())
print("team_is_busy" in _native.paths_taken(), len(os.listdir("/proc/self/task")) - tasks)
"""
    )
    done = fresh(code, OPENBLAS_NUM_THREADS="1")
    assert done.stdout.split() == ["True", "True", "False", "2"], done.stdout + done.stderr


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux")
def test_kept_memory_is_given_back_where_there_is_no_other() -> None:
    code = (
        LSTM
        + LIMIT
        + """
from zstate import _native
zs.set_num_threads(1)
lstm(T=600, N=64, H=512)
x, R, W = (r.normal(size=s).astype("f4") for s in ((20, 64, 512), (512, 128), (512, 512)))
W, d = np.asfortranarray(W), zs.LSTMDescriptor(training=True)
kept = _native.kept_memory()
allow(1 << 20)
state = zs.lstm(x, R, input_weight=W, descriptor=d, backend="native").state
print(kept > 70e6, np.isfinite(state).all())
"""
    )
    done = fresh(code, OPENBLAS_NUM_THREADS="1")
    assert done.stdout.split() == ["True", "True"], done.stdout + done.stderr


LONG = """
import signal, sys, threading, time
x = np.full((100, 64, 2048), 0.1, "f4")
R, W = ((r.random((8192, 2048), "f4") - 0.5) / 10 for _ in range(2))
d = zs.LSTMDescriptor(training=True)
sent = []
def send():
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
def interrupt(call):
    threading.Timer(0.4, send).start()
    try:
        call()
        print("finished")
    except KeyboardInterrupt:
        print("interrupted" if time.monotonic() - sent[-1] < 1 else "late")
"""


@pytest.mark.parametrize(("threads", "pool"), [("1", "own"), ("2", "own"), ("2", "torch")])
def test_an_interrupt_ends_a_long_call(threads: str, pool: str) -> None:
    """Forwards, backwards, and in a product; and the next call is right."""
    code = (
        ("import zstate.torch\n" if pool == "torch" else "")
        + LSTM
        + LONG
        + f"""
zs.set_num_threads({threads})
"""
        + """
from zstate.backends import native
small = lambda: zs.lstm(x[:4, :8], R, input_weight=W, descriptor=d, backend="native")
before = small()
more = dict(input_weight=W, descriptor=d, backend="native")
interrupt(lambda: zs.lstm(x, R, **more))
h, c, z = (np.tile(a, (25, 8, 1)) for a in before)
interrupt(lambda: zs.lstm_gradients(x, R, h, z, c, **more))
a = np.ones((6000, 6000), "f4")
interrupt(lambda: native.product(a, a))
print(all((a == b).all() for a, b in zip(before, small())))
"""
    )
    done = fresh(code, OMP_NUM_THREADS="2")
    assert done.stdout.split() == ["interrupted"] * 3 + ["True"], done


def test_a_daemon_thread_in_a_call_does_not_disturb_the_exit() -> None:
    code = (
        LSTM
        + """
import threading, time
x, R = ((r.random(s, "f4") - 0.5) / 10 for s in ((300, 64, 2048), (2048, 512)))
def work():
    while True: zs.lstm(x, R, backend="native")
threading.Thread(target=work, daemon=True).start()
time.sleep(0.5)
print("leaving")
"""
    )
    for _ in range(3):
        done = fresh(code)
        assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "leaving", "")


@pytest.mark.skipif(sys.platform != "linux", reason="on_exit is of the GNU C library")
def test_a_call_outlives_the_interpreter() -> None:
    """A long call asks for signals where there is no interpreter left, only a process that ends."""
    code = (
        LSTM
        + """
import ctypes, sys, threading, time
libc = ctypes.CDLL(None)
libc.on_exit(libc.sleep, None)  # called with the exit code, 1: a second
x, R = np.full((1000, 64, 2048), 0.1, "f4"), np.full((2048, 512), 0.1, "f4")
threading.Thread(target=zs.lstm, args=(x, R), kwargs={"backend": "native"}, daemon=True).start()
time.sleep(0.01)  # it asks first after 0.1 s
print("leaving")
sys.exit(1)
"""
    )
    done = fresh(code)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (1, "leaving", "")


def test_a_signals_handler_may_call_in_a_call() -> None:
    code = (
        LSTM
        + LONG
        + """
more = dict(input_weight=W, descriptor=d, backend="native")
x = x[:50]
want = zs.lstm(x, R, **more).state
inner = []
signal.signal(signal.SIGINT, lambda *_: inner.append(zs.lstm(x[:5], R, **more).state))
ends = [threading.Timer(wait, send) for wait in (0.1, 0.4)]
for end in ends: end.start()
found = zs.lstm(x, R, **more).state
for end in ends: end.join()
print(len(inner), (found == want).all(), all((i == want[:5]).all() for i in inner))
"""
    )
    done = fresh(code)
    assert done.stdout.split() == ["2", "True", "True"], done


@pytest.mark.parametrize(("pool", "team"), [("own", "team_of_pool"), ("torch", "team_of_openmp")])
def test_small_calls_are_the_same_alone_and_shared(pool: str, team: str) -> None:
    """How many threads a small call gets changes from call to call; its numbers do not."""
    code = (
        ("import zstate.torch\n" if pool == "torch" else "")
        + LSTM
        + f"""
import time
from zstate import _native
x, R, W = (r.normal(size=s).astype("f4") for s in ((64, 3, 48), (192, 48), (192, 48)))
call = lambda: zs.lstm(x, R, input_weight=W, backend="native").state
zs.set_num_threads(1)
want = call()
zs.set_num_threads(2)
_native.forget_paths()
wrong, end = 0, time.monotonic() + 60
while not {{"one_thread", "{team}"}} <= set(_native.paths_taken()) and time.monotonic() < end:
    wrong += sum(not (call() == want).all() for _ in range(200))
    time.sleep(0.002)
print(wrong, *sorted({{"one_thread", "{team}"}} & set(_native.paths_taken())))
"""
    )
    if pool == "torch":
        pytest.importorskip("torch")
    done = fresh(code, OMP_NUM_THREADS="2", ZSTATE_ALWAYS_SHARE=None)
    assert done.stdout.split() == ["0", "one_thread", team], done.stdout + done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="pins threads to a core")
def test_a_lost_core_does_not_tell_against_working_alone() -> None:
    """A small call that took milliseconds because the process was stopped, and then a machine where
    sharing is hopeless: both threads have one core. The calls after it work alone as before."""
    code = (
        LSTM
        + """
import subprocess, sys
from zstate import _native
x, R, W = (r.normal(size=s).astype("f4") for s in ((4, 8, 64), (64, 64), (64, 64)))
call = lambda: zs.single_gate_rnn(x, R, input_weight=W, backend="native")
for _ in range(3000): call()  # knows what both ways take
core = {min(os.sched_getaffinity(0))}
for task in os.listdir("/proc/self/task"): os.sched_setaffinity(int(task), core)
stop = f"for s in (19, 18) * 40: os.kill({os.getpid()}, s), time.sleep(0.005)"
stops = subprocess.Popen([sys.executable, "-S", "-c", "import os, time\\n" + stop])
shared = 0
while stops.poll() is None:
    _native.forget_paths()
    call()
    shared += "team_of_pool" in _native.paths_taken()
where = [os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task")]
print(shared, *(each == core for each in where))
"""
    )
    done = fresh(code, OMP_NUM_THREADS="2", ZSTATE_ALWAYS_SHARE=None)
    shared, *stay = done.stdout.split()
    assert set(stay) == {"True"}, "the pool undid where its caller put it"
    assert int(shared) < 20, done.stderr


@pytest.mark.parametrize("pool", ["own", "torch"])
def test_threads_take_the_mode_of_their_caller(pool: str) -> None:
    """With subnormal numbers flushed to zero, all threads flush them."""
    pytest.importorskip("torch")
    code = (
        ("import zstate.torch\n" if pool == "torch" else "")
        + """
import numpy as np, torch, zstate as zs
torch.set_num_threads(3)
x = np.full((2, 300, 64), 1e-40, "f4")
R = np.zeros((64, 64), "f4")
d = zs.SingleGateRNNDescriptor(activation=zs.Activation.NONE)
def states():
    for threads in (1, 2, 3):
        zs.set_num_threads(threads)
        yield zs.single_gate_rnn(x, R, init_state=x[0], descriptor=d, backend="native").state
print([float(s.min()) > 0 for s in states()], end=" ")
print(torch.set_flush_denormal(True), [bool((s == 0).all()) for s in states()], end=" ")
print(torch.set_flush_denormal(False), [float(s.min()) > 0 for s in states()])
"""
    )
    done = fresh(code, OMP_NUM_THREADS="3")
    true = "[True, True, True]"
    assert done.stdout.strip() == f"{true} True {true} True {true}", done.stdout + done.stderr


def test_indices_may_change_under_a_call() -> None:
    """What was checked is what is read, whatever another thread writes meanwhile."""
    code = """
import threading, time, numpy as np
from zstate.backends import native
table, places = np.ones((1000, 8), "f4"), np.zeros(200_000, "i8")
updates, padded = np.ones((200_000, 8), "f4"), np.ones((400, 500, 8), "f4")
end = time.monotonic() + 4
def write():
    while time.monotonic() < end:
        places[:] = 2**45
        places[:] = 999
def attempt(function, *arguments):
    try: return function(*arguments)
    except ValueError: return None
thread = threading.Thread(target=write)
thread.start()
calls = 0
while time.monotonic() < end:
    attempt(native.fused, "take_rows", table, places)
    attempt(native.fused, "add_rows", updates, places, 1000)
    attempt(native.pack_rows, padded, places)
    attempt(native.unpack_rows, updates, places, 400, 500)
    calls += 1
thread.join()
print("done", calls > 3)
"""
    done = fresh(code)
    assert done.stdout.strip() == "done True", (done.returncode, done.stderr)


def test_a_subinterpreter_is_refused_in_words() -> None:
    code = """
import zstate
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
failure = interpreters.run_string(interpreters.create(), '''
try:
    import zstate
    zstate.lstm
except ImportError as error:
    print("refused:", str(error).splitlines()[0])
''')
print("end", failure)
"""
    done = fresh(code)
    if "No module named" in done.stderr:
        pytest.skip("this Python has no module for them")
    assert done.returncode == 0, done.stderr
    assert "refused:" in done.stdout, done.stdout
