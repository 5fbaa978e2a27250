"""One process at a time writes to a run folder; any number may read it."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ..errors import OptionError, refusal

_LOCK = ".lock"

if sys.platform == "win32":
    import msvcrt

    def _try_to_lock(file: BinaryIO) -> None:
        # Far past the file's contents, which others can then still read.
        file.seek(2**30)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError from error
else:
    import fcntl

    def _try_to_lock(file: BinaryIO) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


class FolderHeldError(OptionError):
    """Another process trains in the folder."""


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold a folder, creating it if missing; refused while another process holds it.

    The operating system locks a file in the folder, so the lock ends with the process, however
    that ends. On leaving, the file and any empty folders created here are removed.
    """
    if folder.exists() and not folder.is_dir():
        raise OptionError(refusal("train", "folder", "a folder", f"the file {folder}"))
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        file = _locked(folder)
        try:
            yield
        finally:
            if sys.platform == "win32":
                file.close()  # Windows removes no open file
            with suppress(OSError):
                (folder / _LOCK).unlink()
            file.close()
    finally:
        for path in made:
            with suppress(OSError):  # not empty, or another process is in it
                path.rmdir()


def _locked(folder: Path) -> BinaryIO:
    """The open file that the lock is on."""
    path = folder / _LOCK
    for _ in range(100):  # once, unless others end in between
        folder.mkdir(parents=True, exist_ok=True)
        try:
            file = path.open("a+b")
        except FileNotFoundError:  # the process that held the folder has just removed it
            continue
        try:
            _try_to_lock(file)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(200).decode("utf-8", "replace").strip() or "another process"
            file.close()
            expected = "a folder that no other process trains in"
            raise FolderHeldError(
                refusal("train", str(folder), expected, f"one held by {holder}")
            ) from None
        except OSError:
            pass  # some network disks have no locks
        with suppress(OSError):
            if os.path.samestat(path.stat(), os.fstat(file.fileno())):
                file.truncate(0)
                file.write(f"process {os.getpid()} on {platform.node()}\n".encode())
                file.flush()
                return file
        file.close()  # its holder removed it between the two steps
    raise FolderHeldError(
        refusal("train", str(folder), "a folder whose files can be locked", "none")
    )
