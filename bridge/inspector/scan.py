"""Finding the processes that have a GPU device open, by the kernel's table of open files. Reads only.

Devices are compared by number, never by path: a container reaches a GPU by a device node of its own making.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from glob import glob
from pathlib import Path

from bridge.model.errors import Unreadable
from bridge.model.kube import DeviceHolder

_VANISHED = (errno.ENOENT, errno.ESRCH)


def devices(globs: Sequence[str], *, root: str = "") -> dict[int, str]:
    """Device numbers of the character devices that match `globs`, each with a path for people (without `root`).

    `Unreadable` when there is none: on a node that is shared for its GPUs that is a mistake, not a clean node.
    """
    found: dict[int, str] = {}
    for path in sorted({path for pattern in globs for path in glob(pattern)}):
        try:
            status = os.stat(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise Unreadable("inspector", f"{path}: {error.strerror}") from error
        if stat.S_ISCHR(status.st_mode):
            found.setdefault(status.st_rdev, path.removeprefix(root))
    if not found:
        raise Unreadable("inspector", f"no device file matches {', '.join(globs)}")
    return found


def holders(proc: Path, device_paths: Mapping[int, str], *, ignored: Collection[str] = ()) -> tuple[DeviceHolder, ...]:
    """Every (process, device) pair in the process table `proc`, by pid; this very process and `ignored` left out.

    A process that ends while it is looked at is no holder. One that cannot be looked at makes all `Unreadable`.
    """
    own = os.getpid()
    found: list[DeviceHolder] = []
    for pid in sorted(int(entry) for entry in os.listdir(proc) if entry.isdigit()):
        folder = proc / str(pid)
        try:
            held = sorted({device_paths[number] for number in _open_devices(folder) if number in device_paths})
            if held and pid != own and _program(folder) not in ignored:
                command, user = _command(folder), _user(folder)
                found += [DeviceHolder(pid, command, user, device) for device in held]
        except OSError as error:
            if error.errno not in _VANISHED:
                raise Unreadable("inspector", f"process {pid}: {error.strerror}") from error
    return tuple(found)


def _open_devices(folder: Path) -> Iterator[int]:
    """Device numbers of all character devices that the process has open."""
    for table in _file_tables(folder):
        for entry in _listed(table):
            try:
                status = os.stat(table / entry)  # through the kernel's own link: right in every mount namespace
            except OSError as error:
                if error.errno not in _VANISHED:
                    # Raises when we may not look at this process. Else it is the file system of the open file that
                    # refuses (FUSE does so even to root, a dead NFS server to all), and those serve no devices.
                    os.readlink(table / entry)
                continue
            if stat.S_ISCHR(status.st_mode):
                yield status.st_rdev


def _file_tables(folder: Path) -> Iterator[Path]:
    """Where the open files of a process are listed: by its first thread, or by the others if that one has ended."""
    if _listed(folder / "fd"):
        yield folder / "fd"
        return
    for thread in _listed(folder / "task"):
        yield folder / "task" / thread / "fd"


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        if error.errno in _VANISHED:
            return []
        raise


def _program(folder: Path) -> str:
    try:
        return os.readlink(folder / "exe")
    except OSError as error:
        if error.errno in _VANISHED:
            return ""
        raise


def _command(folder: Path) -> str:
    """Its command line, or the name the kernel knows it by."""
    line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return line[:100] or f"[{(folder / 'comm').read_text(errors='replace').strip()}]"


def _user(folder: Path) -> str:
    """The owner as a number: names are the node's affair, and its directory service is not in our container."""
    return f"uid {os.stat(folder).st_uid}"
