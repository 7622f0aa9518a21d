"""Checks of the machine that Dovetail is about to run on.

Each check looks at one thing that Spark or Dovetail needs, says what it found and, where that is
not good enough, what to do about it. A check never raises: a surprise becomes a failed check.
Nothing here starts a JVM other than for `java -version`, and nothing is left on disk.

Only the standard library is imported, because `make setup` runs this file by itself, before
anything is installed, to report a missing Java ahead of the downloads.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

OLDEST_PYTHON = (3, 11)
OLDEST_JAVA = 17
LEAST_FREE_BYTES = 1 << 30

# The first version that works and the first that is not known to: as in pyproject.toml, which a
# test compares with this.
LIBRARIES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "pyspark": ((4, 3), (5,)),
    "pyarrow": ((18,), (27,)),
    "numpy": ((2, 1), (3,)),
    "pandas": ((2, 2, 3), (3,)),
}

# A JVM answers `-version` in well under a second; a stuck one must not hang the doctor.
COMMAND_TIMEOUT_S = 20.0
SOCKET_TIMEOUT_S = 5.0

_JAVA_REMEDY = (
    f"Install Java {OLDEST_JAVA} or newer"
    f" (Debian or Ubuntu: `apt install openjdk-{OLDEST_JAVA}-jre-headless`;"
    f" macOS: `brew install openjdk@{OLDEST_JAVA}`;"
    f" conda: `conda install -c conda-forge 'openjdk>={OLDEST_JAVA}'`)"
    " and set JAVA_HOME to it, or put its bin directory on PATH."
)


@dataclass(frozen=True)
class Check:
    """The result of one check. `remedy` is empty exactly when `ok`."""

    name: str
    ok: bool
    detail: str
    remedy: str


def run_checks(state: Path | None) -> list[Check]:
    """Run every check, in the order in which a user would want to fix things.

    `state` is the state directory that is to be used; it need not exist, and is not created.
    None stands for the working directory, below which a relative `state` would go.
    """
    where = Path() if state is None else state
    return [
        check_python(),
        check_java(),
        *(check_library(name) for name in LIBRARIES),
        check_worker_python(),
        check_disk_space(where),
        check_state_writable(where),
        check_state_atomic(where),
        check_loopback(),
        check_hostname(),
    ]


def java_problem() -> str | None:
    """Say in one paragraph why Spark could not start its JVM, and what to do; None if it could."""
    check = check_java()
    if check.ok:
        return None
    return f"Spark needs Java {OLDEST_JAVA} or newer, but {check.detail}. {check.remedy}"


# --- Python, Java and libraries -----------------------------------------------------------------


def check_python() -> Check:
    """The interpreter that runs this is new enough."""
    return _judge(
        "Python",
        sys.version_info >= OLDEST_PYTHON,
        f"{_dotted(sys.version_info[:3])} at {sys.executable}",
        f"Install Python {_dotted(OLDEST_PYTHON)} or newer.",
    )


def check_java() -> Check:
    """The Java that Spark would start exists, runs and is new enough.

    Looks where Spark's launcher does: JAVA_HOME if that is set, and PATH only if it is not. A bad
    JAVA_HOME is therefore a failure even with a good Java on PATH.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if found is None:
        missing = (
            f"JAVA_HOME is {home}, which has no bin/java"
            if home
            else "JAVA_HOME is not set and there is no java on PATH"
        )
        return Check("Java", False, missing, _JAVA_REMEDY)
    try:
        # The version goes to standard error by custom, to standard output by some vendors.
        answer = _run([found, "-version"])
    except (OSError, subprocess.SubprocessError) as error:
        return Check("Java", False, f"{found} does not run ({error})", _JAVA_REMEDY)
    major = _java_major(answer)
    if major is None:
        # macOS has a java that only says that there is none.
        detail = f"{found} tells no version: it says {_shortened(answer)!r}"
        return Check("Java", False, detail, _JAVA_REMEDY)
    return _judge("Java", major >= OLDEST_JAVA, f"{found} is version {major}", _JAVA_REMEDY)


def check_library(name: str) -> Check:
    """The library is installed, in a version that works; it is not imported."""
    first, beyond = LIBRARIES[name]
    wanted = f"{name}>={_dotted(first)},<{_dotted(beyond)}"
    remedy = f"Run `{sys.executable} -m pip install '{wanted}'`."
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, False, "not installed", remedy)
    return _judge(name, first <= _release(version) < beyond, version, remedy)


def check_worker_python() -> Check:
    """The Python that a local session of the user starts its workers with can run a join.

    That is PYSPARK_PYTHON if it is set, and else this very Python: Dovetail sees to that on a local
    master, where Spark by itself would take the first `python3` on PATH.
    """
    name = "Spark worker Python"
    chosen = os.environ.get("PYSPARK_PYTHON")
    if chosen is None:
        detail = (
            f"{sys.executable}, on this machine; PYSPARK_PYTHON is not set, so on a cluster each "
            "node's python3 has to have Dovetail"
        )
        return Check(name, True, detail, "")
    remedy = (
        f"Unset PYSPARK_PYTHON, or set it to {sys.executable} or to another Python of this version "
        "that Dovetail is installed in."
    )
    needed = ("dovetail", "pyarrow", "pyspark")
    ask = (
        "import sys, importlib.util as u; print('%d.%d' % sys.version_info[:2], 'without',"
        f" *[n for n in {needed} if not u.find_spec(n)] or ['nothing'])"
    )
    try:
        says = _shortened(_run([chosen, "-c", ask]))
    except (OSError, subprocess.SubprocessError) as error:
        return Check(name, False, f"{chosen} does not run ({error})", remedy)
    here = _dotted(sys.version_info[:2])
    ok = says.endswith(f"{here} without nothing")
    found = f"{here} with {', '.join(needed)}" if ok else says
    return _judge(name, ok, f"{chosen} is {found}; the driver's is {here}", remedy)


# --- disk ---------------------------------------------------------------------------------------


def check_disk_space(state: Path) -> Check:
    """The file system that `state` is on, or would be on, has some room left."""
    name = "Free disk space"
    remedy = (
        f"Free at least {LEAST_FREE_BYTES >> 20} MB, or name a state directory on another disk:"
        " rows beyond the memory budget go there."
    )
    try:
        base = _nearest_existing(state)
        free_bytes = shutil.disk_usage(base).free
    except OSError as error:
        return Check(name, False, f"cannot be told for {state} ({error})", remedy)
    detail = f"{free_bytes / (1 << 30):.1f} GB at {base}"
    return _judge(name, free_bytes >= LEAST_FREE_BYTES, detail, remedy)


def check_state_writable(state: Path) -> Check:
    """Files can be made, synced and read back in `state`, or where it would be made."""
    name = "State directory"
    try:
        with _scratch_directory(state) as scratch:
            _write_synced(scratch / "probe", b"dovetail")
            if (scratch / "probe").read_bytes() != b"dovetail":
                raise OSError("a file did not read back as written")
            written = scratch.parent
    except OSError as error:
        remedy = "Name a state directory that this user may create and write to."
        return Check(name, False, f"{state} cannot be written ({error})", remedy)
    return Check(name, True, f"{written} can be written", "")


def check_state_atomic(state: Path) -> Check:
    """The operations that a commit rests on behave in `state`, or where it would be made.

    A rename replaces its target, and a hard link refuses a name that is taken.
    """
    name = "Atomic commit"
    remedy = (
        "Put the state on a file system with POSIX rename and hard links (ext4, XFS, APFS, NFS);"
        " FAT and mounted object stores lack them."
    )
    try:
        with _scratch_directory(state) as scratch:
            flaw = _commit_flaw(scratch)
    except OSError as error:
        return Check(name, False, f"cannot be tried in {state} ({error})", remedy)
    return _judge(name, flaw is None, flaw or "rename and hard link are atomic", remedy)


def _commit_flaw(scratch: Path) -> str | None:
    """Rehearse a commit; say which operation failed it, or None."""
    old, new, link = scratch / "old", scratch / "new", scratch / "link"
    _write_synced(old, b"old")
    _write_synced(new, b"new")
    try:
        os.replace(new, old)
        replaced = old.read_bytes() == b"new" and not new.exists()
    except OSError as error:
        return f"rename over an existing file fails ({error})"
    if not replaced:
        return "rename over an existing file does not replace it"
    try:
        link.hardlink_to(old)
    except OSError as error:
        return f"hard links are refused ({error})"
    try:
        link.hardlink_to(old)
    except FileExistsError:
        return None
    except OSError as error:
        return f"a hard link to a taken name fails in an unknown way ({error})"
    return "a hard link replaces a name that is taken"


def _nearest_existing(path: Path) -> Path:
    """The path itself or its nearest ancestor that exists. Raises OSError if none can be seen."""
    path = path.absolute()
    # lstat, unlike exists(), tells "not there" from "may not look", and sees dangling links.
    for candidate in (path, *path.parents):
        try:
            candidate.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        return candidate
    raise FileNotFoundError(f"no part of {path} exists")


@contextmanager
def _scratch_directory(state: Path) -> Iterator[Path]:
    """A directory on the file system of `state`, gone afterwards. Raises OSError if refused."""
    base = _nearest_existing(state)
    with tempfile.TemporaryDirectory(prefix=".dovetail-doctor-", dir=base) as name:
        yield Path(name)


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


# --- network ------------------------------------------------------------------------------------


def check_loopback() -> Check:
    """A connection over loopback works: the Python and Java halves of Spark talk through one."""
    name = "Loopback network"
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), SOCKET_TIMEOUT_S):
                return Check(name, True, "127.0.0.1 can be bound and reached", "")
    except OSError as error:
        remedy = "Allow local TCP connections: see the firewall or the sandbox this runs in."
        return Check(name, False, f"127.0.0.1 cannot be used ({error})", remedy)


def check_hostname() -> Check:
    """This machine's name has an address: Spark looks it up when it starts."""
    name = "Host name"
    chosen = os.environ.get("SPARK_LOCAL_IP")
    if chosen:
        return Check(name, True, f"not looked up: SPARK_LOCAL_IP is {chosen}", "")
    host = socket.gethostname()
    try:
        address = socket.gethostbyname(host)
    except (OSError, UnicodeError) as error:  # the latter for a name that is no name
        remedy = f"Add `127.0.0.1 {host}` to /etc/hosts, or set SPARK_LOCAL_IP=127.0.0.1."
        return Check(name, False, f"{host} has no address ({error})", remedy)
    return Check(name, True, f"{host} is {address}", "")


# --- small parts --------------------------------------------------------------------------------


def _judge(name: str, ok: bool, detail: str, remedy: str) -> Check:
    return Check(name, ok, detail, "" if ok else remedy)


def _run(command: list[str]) -> str:
    """The output of a command, stdout and stderr, whatever its exit status."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
        text=True,
        errors="replace",
    )
    return done.stdout


def _shortened(answer: str) -> str:
    """The end of what a command said, on one line: that is where its complaint is."""
    return " ".join(answer.split())[-200:] or "nothing"


def _java_major(answer: str) -> int | None:
    """The feature release in what `java -version` says: 17 for "17.0.15", 8 for "1.8.0_391"."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', answer)
    if found is None:
        return None
    first, second = found.groups()
    return int(second) if first == "1" and second else int(first)


def _release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (4, 3, 0) for "4.3.0.dev1"."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


if __name__ == "__main__":
    problem = java_problem()
    if problem is not None:
        sys.exit(f"setup: {problem}")
