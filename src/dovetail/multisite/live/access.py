"""Who may talk to a site: those who have the token, over TLS or from the same machine.

The token is a secret that all sites of a query and its clients share. It comes from a file or from
the environment, never from a command line, and is in no message of ours. Without TLS it could be
read on the way, so plain connections are for the loopback interface only, for trials.

gRPC takes a request into memory as a whole before the token is looked at, and has no limit for it
that could be set from here. So a port that others can reach asks for certificates
(`verify_clients`): who has none is refused at the handshake, before a byte of a request is read.
"""

import hmac
import ipaddress
import logging
import os
import socket
import ssl
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyarrow import flight

from dovetail.errors import SiteAccessError, SiteError

_log = logging.getLogger(__name__)
TOKEN_VARIABLE = "DOVETAIL_SITE_TOKEN"
TOKEN_FILE_VARIABLE = "DOVETAIL_SITE_TOKEN_FILE"
CA_VARIABLE = "DOVETAIL_SITE_CA"
CERTIFICATE_VARIABLE = "DOVETAIL_SITE_CERTIFICATE"
KEY_VARIABLE = "DOVETAIL_SITE_KEY"
_LEAST_CHARACTERS = 16
_TLS = "grpc+tls"
_PLAIN = ("grpc", "grpc+tcp")


@dataclass(frozen=True)
class Certificate:
    """What an end of a connection shows: a certificate and its key, in PEM."""

    chain: bytes
    key: bytes = field(repr=False)

    @classmethod
    def from_files(cls, chain: str | Path, key: str | Path) -> "Certificate":
        found = cls(_read(Path(chain), "certificate"), _read(Path(key), "key"))
        _warn_if_open(Path(key), "key")
        try:  # a key with a passphrase is refused, not asked for
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(chain, key, password="")
        except (ssl.SSLError, ValueError) as error:
            raise SiteAccessError(
                f"{chain} and {key} are no certificate in PEM and its key, without a passphrase "
                f"({error})"
            ) from error
        return found


@dataclass(frozen=True)
class Access:
    """The token, the certificate of whoever signs the sites' certificates, in PEM, and the one that
    we show, to sites that ask for it.
    """

    token: str = field(repr=False)
    ca: bytes | None = field(default=None, repr=False)
    certificate: Certificate | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check_authority(self.ca)
        if len(self.token) < _LEAST_CHARACTERS or not self.token.isascii():
            raise SiteAccessError(
                f"the token has fewer than {_LEAST_CHARACTERS} characters, or others than ASCII: "
                "make one with python -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )

    @classmethod
    def from_files(
        cls, token_file: str | Path | None, ca: str | Path | None = None,
        certificate: str | Path | None = None, key: str | Path | None = None,
    ) -> "Access":  # fmt: skip
        """The token from a file, or else from the environment; its first line counts."""
        token = os.environ.get(TOKEN_VARIABLE)
        token_file = token_file or (None if token else os.environ.get(TOKEN_FILE_VARIABLE))
        if token_file:
            token = _read(Path(token_file), "token").decode("utf-8", "replace")
            _warn_if_open(Path(token_file), "token")
        if not token or not token.strip():
            raise SiteAccessError(
                "there is no token: name a file that holds it (token_file), or set "
                f"{TOKEN_VARIABLE} or {TOKEN_FILE_VARIABLE}"
            )
        ca = ca or os.environ.get(CA_VARIABLE)
        if not (certificate or key):
            certificate, key = map(os.environ.get, (CERTIFICATE_VARIABLE, KEY_VARIABLE))
        if bool(certificate) != bool(key):
            raise SiteAccessError(
                "a certificate and its key belong together: name both, or neither (certificate, "
                f"key; or {CERTIFICATE_VARIABLE}, {KEY_VARIABLE})"
            )
        return cls(
            token.strip().splitlines()[0].strip(),
            _read(Path(ca), "CA") if ca else None,
            Certificate.from_files(certificate, key) if certificate and key else None,
        )

    @classmethod
    def from_env(cls) -> "Access":
        return cls.from_files(None)

    def options(self, timeout: float | None = None) -> Any:
        """Call options that carry the token."""
        headers = [(b"authorization", f"Bearer {self.token}".encode())]
        return flight.FlightCallOptions(timeout=timeout, headers=headers)

    def connect(self, address: str) -> Any:
        """A Flight client. Connects when it is first used."""
        if is_tls(address):
            shown = self.certificate
            return flight.FlightClient(
                address, tls_root_certs=self.ca,
                cert_chain=shown.chain if shown else None,
                private_key=shown.key if shown else None,
            )  # fmt: skip
        check_plain(address)
        return flight.FlightClient(address)


class TokenGate(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets no call through that does not carry the token."""

    def __init__(self, access: Access) -> None:
        super().__init__()
        self._wanted = f"Bearer {access.token}".encode()

    def start_call(self, info: Any, headers: Mapping[str, list[Any]]) -> None:
        values = next((v for k, v in headers.items() if k.lower() == "authorization"), [])
        given = values[0] if values else b""
        if isinstance(given, str):
            given = given.encode("utf-8", "replace")
        if not hmac.compare_digest(given, self._wanted):
            raise flight.FlightUnauthenticatedError("the token is missing or wrong")


def _check_authority(ca: bytes | None) -> None:
    try:
        if ca is not None:
            ssl.create_default_context(cadata=ca.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise SiteAccessError(f"the CA's file holds no certificate in PEM ({error})") from error


def _warn_if_open(path: Path, what: str) -> None:
    """Whoever has the token, or the key, may read and write all that sites have."""
    if os.name == "posix" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        _log.warning("the %s file %s can be read by others: chmod 600 %s", what, path, path)


def is_tls(address: str) -> bool:
    """Whether an address asks for TLS; complains about any that is none."""
    parts = urlsplit(address)
    try:
        complete = bool(parts.hostname) and parts.port is not None
    except ValueError:
        complete = False
    if parts.scheme not in (_TLS, *_PLAIN) or not complete:
        raise SiteAccessError(
            f"{address!r} is no address of a site: write grpc+tls://host:port, or "
            "grpc://127.0.0.1:port for trials"
        )
    return parts.scheme == _TLS


def check_plain(address: str) -> None:
    """Refuse an address without TLS that is not on this machine."""
    host = urlsplit(address).hostname or ""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not loopback:
        raise SiteAccessError(
            f"{address} is without TLS and not on this machine: anyone on the way could read the "
            "token. Use grpc+tls://, plain connections are for 127.0.0.1 only"
        )


def check_free(address: str) -> None:
    """Refuse a port that is taken: gRPC would share it, and each get some of the calls."""
    parts = urlsplit(address)
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, where = found[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(where)
    except OSError as error:
        raise SiteError(
            f"cannot listen at {address}: {error.strerror or error}. Choose another port or address"
        ) from error


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SiteAccessError(f"cannot read the {what} file {path}: {error.strerror}") from error
