"""Calls in a child process, since MPSGraph ends the process that makes a bad one.

One child performs call after call; when it dies or hangs, that call's outcome says so and the next
call gets a new child. Parent and child exchange pickles: calls one way, outcomes the other.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any

from ..errors import BackendError
from .calling import Call, Framework, Outcome

_START = 60.0  # seconds that a child has for its imports


class Children:
    """Performs calls on the modules of these names, one child after the other.

    A call that takes longer than ``timeout`` seconds is ended. Use it in a ``with`` statement.
    """

    def __init__(self, modules: Sequence[str], timeout: float) -> None:
        self._modules, self._timeout = tuple(modules), timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        self.facts: dict[str, str] = {}

    def __enter__(self) -> Children:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._errors.close()

    def run(self, call: Call) -> Outcome:
        """The outcome of a call, also if it ends the child."""
        if self._process is None:
            try:
                self._start()
            except BackendError as error:
                return Outcome("crashed", f"no new child: {error}")
        answer, text = self._ask(call, self._timeout)
        if answer is not None:
            outcome: Outcome = answer
            return outcome
        if text is None:
            return Outcome("timed out", f"no answer within {self._timeout:g} s")
        return Outcome("crashed", text)

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *self._modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        facts, text = self._ask(None, max(self._timeout, _START))
        if not isinstance(facts, dict):
            why = facts if facts is not None else text or "it does not start"
            self._end()
            raise BackendError(f"[check] {', '.join(self._modules)}: {why}")
        self.facts = facts

    def _ask(self, question: Call | None, seconds: float) -> tuple[Any, str | None]:
        """The child's answer, or None and how the child ended (None: it was too slow)."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        self._errors.seek(0, os.SEEK_END)
        before = self._errors.tell()
        late = threading.Event()

        def stop() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), stop)
        timer.start()
        try:
            pickle.dump(question, process.stdin)
            process.stdin.flush()
            return pickle.load(process.stdout), None
        except (EOFError, OSError, pickle.UnpicklingError):
            status = process.wait()
            self._errors.seek(before)
            lines = self._errors.read().decode(errors="replace").split("\n")
            said = [line.strip() for line in lines if line.strip()]
            self._end()
            return None, None if late.is_set() else _ending(status, said[-1:])
        finally:
            timer.cancel()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):  # what was still to be written to a dead child
                    stream.close()


def _ending(status: int, said: list[str]) -> str:
    """How a process ended, and the last line that it wrote."""
    name = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    return ": ".join([name, *said])


def main(modules: Sequence[str]) -> None:
    """Run incoming calls until there are no more."""
    # What a framework prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def answer(value: object) -> None:
        pickle.dump(value, answers)
        answers.flush()

    pickle.load(sys.stdin.buffer)
    try:
        framework = Framework.named(modules)
    except Exception as error:  # whatever an import raises is the reason
        answer(f"{type(error).__name__}: {error}")
        return
    answer(framework.facts())
    while True:
        try:
            call = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        answer(framework.run(call))


if __name__ == "__main__":
    main(sys.argv[1:])
