"""A host: its parts of queries, each with a folder that it goes on from after a restart."""

import fcntl
import json
import logging
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from dovetail.errors import (
    ArgumentError,
    DovetailError,
    SiteError,
    SiteRefusedError,
    SiteUnavailableError,
    StateMismatchError,
)
from dovetail.multisite.live.access import Access
from dovetail.multisite.live.deployment import Deployment, Shape, check_name
from dovetail.multisite.live.driver import Driver
from dovetail.multisite.live.folders import corrupt, missing, private_folder
from dovetail.multisite.live.journal import happened
from dovetail.multisite.live.limits import Limits
from dovetail.multisite.live.link import Link
from dovetail.multisite.live.records import read_whole, sync_directory, write_whole
from dovetail.multisite.live.restoring import journal_of

_log = logging.getLogger(__name__)
_FILE = "deployment"
_GUARD = "lock"
_WHY = "it says what the query is"


class Part:
    """A host's part of one query."""

    def __init__(
        self, deployment: Deployment, host: str, directory: Path, access: Access, limits: Limits
    ) -> None:
        self.driver = Driver(deployment, host, directory, limits)
        self.links = {peer: Link(self.driver, peer, access) for peer in self.driver.outboxes}
        self.driver.start()
        for link in self.links.values():
            link.start()

    def stop(self) -> None:
        for link in self.links.values():
            link.stop()
        self.driver.stop()

    def status(self) -> dict[str, Any]:
        status = self.driver.status()
        for peer, link in self.links.items():
            facts = ("connected", "error", "refused", "calls", "resent")
            status["links"][peer] |= {name: getattr(link, name) for name in facts}
        return status


class Host:
    """All that one process serves. Any thread may call."""

    def __init__(
        self, name: str, directory: Path, access: Access, limits: Limits | None = None
    ) -> None:
        check_name("a site", name)
        self.name = name
        self.limits = limits or Limits()
        directory = self._directory = directory.resolve()
        self._access = access
        self._parts: dict[str, Part] = {}
        self._failed: dict[str, str] = {}  #: queries that could not be gone on with, and why
        self._ending: set[str] = set()
        self._closing = False
        self._lock = threading.Lock()
        private_folder(directory)
        self._guard = _only_one(directory)

    def restore(self) -> None:
        """Go on with the queries that this host was running; those that cannot say why."""
        for folder in sorted(path for path in self._directory.iterdir() if path.is_dir()):
            name = folder.name
            try:
                if not (folder / _FILE).exists() and not happened(folder):
                    continue  # it had not been started yet
                part = self._part(_deployment_in(folder / _FILE))
            except Exception as error:  # noqa: BLE001 - other queries go on
                _log.exception("query %s cannot go on at %s", name, self.name)
                problem = str(error) if isinstance(error, DovetailError) else repr(error)
                with self._lock:
                    self._failed[name] = problem
            else:
                with self._lock:
                    self._parts[name] = part

    def _part(self, deployment: Deployment) -> Part:
        directory = self._directory / deployment.name
        return Part(deployment, self.name, directory, self._access, self.limits)

    def start(self, deployment: Deployment) -> bool:
        """Run a part of a query; False if it is running already."""
        if self.name not in deployment.hosts:
            raise ArgumentError(
                f"query {deployment.name!r} has no stream at {self.name!r}; its sites are "
                f"{', '.join(deployment.hosts)}"
            )
        with self._lock:
            part = self._parts.get(deployment.name)
            if part is not None:
                self._move(part, deployment)
                return False
            if deployment.name in self._ending:
                raise SiteUnavailableError(
                    f"query {deployment.name!r} is being stopped at {self.name!r}; try again later"
                )
            directory = self._directory / deployment.name
            deployment = self._going_on(directory, deployment)
            if not (directory / _FILE).exists():
                # before the file that says that there is a query: so a journal that is missing then
                # was lost
                if happened(directory):
                    raise missing(directory / _FILE, _WHY)
                journal_of(deployment, self.name, directory, self.limits).begin()
                sync_directory(self._directory)
            write_whole(directory / _FILE, json.dumps(deployment.to_json()).encode())
            self._parts[deployment.name] = self._part(deployment)
            self._failed.pop(deployment.name, None)
        _log.info("query %s starts at %s", deployment.name, self.name)
        return True

    def _going_on(self, directory: Path, deployment: Deployment) -> Deployment:
        """What an earlier query has left here must be of the same one, which is gone on with."""
        if not (directory / _FILE).exists():
            return deployment
        left = _deployment_in(directory / _FILE)
        if left.digest != deployment.digest:
            raise SiteRefusedError(
                f"site {self.name!r} still has the state of another query that was called "
                f"{deployment.name!r}: delete it (stop it and forget it), or give this one another "
                "name"
            )
        # plans were chosen by the links as they were, and will be again when events are replayed
        return replace(deployment, shapes=left.shapes) if left.replan_every else deployment

    def _move(self, part: Part, deployment: Deployment) -> None:
        """The same query with other addresses."""
        if part.driver.deployment.digest != deployment.digest:
            raise SiteRefusedError(
                f"site {self.name!r} runs another query that is called {deployment.name!r}: stop "
                "it first, or give this one another name"
            )
        moved = part.driver.deployment.moved(deployment.addresses)
        path = self._directory / deployment.name / _FILE
        write_whole(path, json.dumps(moved.to_json()).encode())
        part.driver.deployment = moved

    def stop(self, query: str, *, forget: bool) -> None:
        """End a query here. `forget`: delete its folder, or it goes on with the next restart."""
        check_name("a query", query)
        directory = self._directory / query
        with self._lock:
            part = self._parts.pop(query, None)
            if query in self._ending:
                raise SiteUnavailableError(f"query {query!r} is being stopped at {self.name!r}")
            if part is None and not (forget and directory.exists()):
                raise SiteRefusedError(self._unknown(query))
            self._ending.add(query)
        try:
            if part is not None:
                part.stop()
            if forget:
                shutil.rmtree(directory)
        finally:
            with self._lock:
                self._ending.discard(query)
                if forget:
                    self._failed.pop(query, None)

    def close(self) -> None:
        with self._lock:
            self._closing = True
            parts, self._parts = self._parts, {}
        for part in parts.values():
            part.stop()
        self._guard.close()

    @property
    def queries(self) -> list[str]:
        with self._lock:
            return sorted(self._parts)

    def part(self, query: str) -> Part:
        with self._lock:
            part, problem = self._parts.get(query), self._failed.get(query)
        if part is None and self._closing:
            raise SiteUnavailableError(f"site {self.name!r} is being stopped")
        if problem is not None:
            raise SiteError(f"query {query!r} could not go on at {self.name!r}: {problem}")
        if part is None:
            raise SiteRefusedError(self._unknown(query))
        return part

    def part_for_peer(self, query: str, digest: str) -> Part:
        """As `part`, for another host, which may have heard of a query before this one has."""
        try:
            part = self.part(query)
        except SiteRefusedError as error:
            raise SiteUnavailableError(str(error)) from error
        if part.driver.deployment.digest != digest:
            raise SiteRefusedError(
                f"site {self.name!r} runs another query that is called {query!r}: its digest is "
                f"{part.driver.deployment.digest}, not {digest}"
            )
        return part

    def _unknown(self, query: str) -> str:
        running = ", ".join(sorted(self._parts)) or "none"
        return f"site {self.name!r} does not run a query {query!r}; it runs {running}"

    def shape(self, query: str, peer: str, shape: Shape) -> None:
        """Hold messages to another host back, for experiments."""
        outboxes = self.part(query).driver.outboxes
        if peer not in outboxes:
            raise SiteRefusedError(f"there is no link from {self.name!r} to {peer!r}")
        outboxes[peer].reshape(shape)


def _only_one(directory: Path) -> IO[bytes]:
    """Two processes that write one journal would spoil it. Holds until it is closed."""
    guard = os.fdopen(os.open(directory / _GUARD, os.O_RDWR | os.O_CREAT, 0o600), "ab")
    try:
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        guard.close()
        raise SiteError(
            f"another process serves a site from {directory}: end it, or give this one a folder of "
            "its own"
        ) from error
    return guard


def _deployment_in(path: Path) -> Deployment:
    """The query of a folder, which is called like it."""
    if not path.exists():
        raise missing(path, _WHY)
    try:
        deployment = Deployment.from_json(json.loads(read_whole(path)))
    except ValueError as error:
        raise corrupt(f"the file {path} does not describe a query ({error})") from error
    if deployment.name != path.parent.name:
        raise StateMismatchError(
            f"the folder {path.parent} has the state of query {deployment.name!r}: call it so "
            "again, or delete it"
        )
    return deployment
