"""Prove the ARM engines in an emulator: cross-compile them, and run tests on several kinds of CPU.

    python tools/arm.py "qemu-aarch64 -L ROOT ROOT/usr/bin/python3.11"

Needs qemu-user, g++-aarch64-linux-gnu, and below ROOT an ARM Python of this interpreter's version
(CONTRIBUTING says where from). NumPy and pytest for it come by pip, torch does not. Each CPU has to
have the engines that its instructions allow. On each of them run the tests of prepared layers: with
int8, products have the bits of their definition and the engines each other's, for one to three
threads. The widest CPU also makes random calls of all kinds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

from wheels import ROOT, install_for_arm, run, version_of

BUILD = ROOT / "build" / "arm"
CPUS = {  # of QEMU, and their engines
    "cortex-a72": "neon",
    "neoverse-n1": "neon neon_dot",
    "max": "neon neon_dot neon_i8mm neon_bf16",
}
TESTS = ("test_int8.py", "test_floats.py", "test_streams.py")
# A race that an emulator takes a minute for.
CHOICE = ("-k", "not in_two_threads")
ISAS = "from zstate.backends import native; print(*native._native.supported_isas())"


def build(suffix: str) -> Path:
    """The package with an ARM engine, in a folder to import from."""
    options = (f"-DPython_EXECUTABLE={sys.executable}", "-DZSTATE_XLA_INCLUDE=none")
    toolchain = f"-DCMAKE_TOOLCHAIN_FILE={ROOT / 'tools' / 'aarch64.cmake'}"
    run("cmake", "-G", "Ninja", "-S", ROOT, "-B", BUILD, "-DZSTATE_WERROR=ON", toolchain, *options)
    run("cmake", "--build", BUILD)
    folder = BUILD / "package"
    shutil.rmtree(folder, ignore_errors=True)
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "src" / "zstate", folder / "zstate", ignore=ignored)
    (library,) = BUILD.glob("_native.*.so")
    shutil.copy(library, folder / "zstate" / f"_native{suffix}")
    return folder


def main() -> None:
    """A line per CPU and part, and what failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("python", help="the command of an ARM Python in the emulator")
    parser.add_argument("--cpu", action="append", choices=CPUS, help="of these alone")
    parser.add_argument("--calls", type=int, default=60, help="random calls on the widest CPU")
    options = parser.parse_args()
    command = options.python.split()
    for tool in (command[0], "aarch64-linux-gnu-g++", "cmake", "ninja"):
        if not shutil.which(tool):
            sys.exit(f"tools/arm.py: no {tool} here")
    version = version_of(*command)
    if version != sys.version_info[:2]:
        sys.exit(f"tools/arm.py: the ARM Python is {version}, this one {sys.version_info[:2]}")
    suffix = "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))"
    package = build(run(*command, "-c", suffix).strip())
    others = BUILD / f"python{version[0]}.{version[1]}"
    if not others.exists():
        install_for_arm(others, version, "numpy", "ml_dtypes", "pytest", "hypothesis")
    paths = ":".join(map(str, (package, others, ROOT)))
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    environment = {**os.environ, **threads, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    tests = [str(ROOT / "tests" / "prepared" / name) for name in TESTS]
    for cpu in options.cpu or CPUS:
        there = {"env": {**environment, "QEMU_CPU": cpu}, "cwd": ROOT}
        isas = run(*command, "-c", ISAS, **there).strip()
        if isas != CPUS[cpu]:
            sys.exit(f"{cpu}: expected the engines {CPUS[cpu]}, got {isas}")
        parts = [("-m", "pytest", "-q", "-p", "no:cacheprovider", *CHOICE, *tests)]
        if cpu == list(CPUS)[-1]:
            script = str(ROOT / "tests" / "native" / "random_calls.py")
            parts.append((script, "--calls", str(options.calls)))
        for part in parts:
            begin = time.perf_counter()
            output = run(*command, *part, **there).splitlines()[-1]
            print(f"{cpu}: {output}  {time.perf_counter() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
