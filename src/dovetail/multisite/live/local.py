"""Sites on this machine, for trials, tests and benchmarks."""

import json
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dovetail.errors import SiteError
from dovetail.multisite.live.access import Access

_START_SECONDS = 180.0  # a process that has ended is noticed at once


@dataclass
class LocalSites:
    """Sites on this machine, one process each, plain loopback and a token of their own."""

    directory: Path
    hosts: tuple[str, ...]
    limits: Mapping[str, object] = field(default_factory=dict)  #: as in a site's file
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        token = self.directory / "token"
        if not token.exists():
            token.touch(mode=0o600)
            token.write_text(secrets.token_urlsafe(32), encoding="utf-8")
        self.access = Access.from_files(token)

    def start(
        self, host: str, *, listen: str = "grpc://127.0.0.1:0", extra: str = "",
        within: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """Start a site, again if it was stopped; `address` tells where it is.

        `extra`: lines for its file. `within`: a command that runs the command after it.
        """
        folder = self.directory / host
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / "address").unlink(missing_ok=True)
        config = self.directory / f"{host}.toml"
        limits = "".join(f"{key} = {json.dumps(value)}\n" for key, value in self.limits.items())
        config.write_text(
            f'name = "{host}"\nlisten = "{listen}"\ndata = "{host}"\ntoken_file = "token"\n'
            f"{extra}\n[limits]\n{limits}",
            encoding="utf-8",
        )
        with (self.directory / f"{host}.log").open("ab") as log:
            self.processes[host] = subprocess.Popen(
                [*within, sys.executable, "-m", "dovetail.cli", "site", "serve", str(config)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def kill(self, host: str, seconds: float = 0.0) -> None:
        """Kill a site as a crash would, and start it again at its address some seconds later.

        Does not wait until it listens.
        """
        address = self.address(host)
        self.processes[host].kill()
        self.processes[host].wait()
        time.sleep(seconds)
        self.start(host, listen=address)

    def address(self, host: str) -> str:
        """Where a site listens, when it does."""
        deadline = time.monotonic() + _START_SECONDS
        path = self.directory / host / "address"
        while not path.exists():
            if self.processes[host].poll() is not None or time.monotonic() > deadline:
                log = (self.directory / f"{host}.log").read_text(errors="replace")
                raise SiteError(f"the site {host!r} did not start:\n{log[-2000:]}")
            time.sleep(0.02)
        return path.read_text(encoding="utf-8")

    def addresses(self) -> dict[str, str]:
        return {host: self.address(host) for host in self.hosts}

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
