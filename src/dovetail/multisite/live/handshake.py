"""Why two ends do not come to talk: one with TLS and one without, or a certificate that is refused.

gRPC says of all that only that the socket was closed, as of a site that is away. So when it says so
and somebody does listen there, one more connection is made, to look.
"""

import socket
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from dovetail.multisite.live.access import Access, is_tls

T = TypeVar("T")

_SECONDS = 2.0


def tls_problem(address: str, access: Access) -> str | None:
    """What keeps us out, in words; None if it is nothing that can be seen."""
    try:
        first = _looked(address, access)
        # once more: a site that has just been killed has closed its end, too
        return first and _looked(address, access)
    except OSError:
        return None  # nobody listens there, or it was too slow to say


def _looked(address: str, access: Access) -> str | None:
    parts = urlsplit(address)
    with socket.create_connection((parts.hostname, parts.port), _SECONDS) as plain:
        if is_tls(address):
            return _with_tls(plain, str(parts.hostname), access)
        return _without_tls(plain)


def _without_tls(plain: socket.socket) -> str | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent: it is only asked whether it is TLS
    try:
        _Talk(plain, context).shake_hands()
    except ssl.SSLError as error:
        if "ALERT" not in str(error.reason):
            return None
    return "it speaks TLS, and was called without: write grpc+tls:// in its address"


def _with_tls(plain: socket.socket, host: str, access: Access) -> str | None:
    try:
        talk = _Talk(plain, _context(access), host)
        talk.shake_hands()
        # with TLS 1.3, a certificate is refused now only; gRPC hangs up and says nothing
        return None if talk.hears() else _refused(access)
    except TimeoutError:
        return None
    except ssl.SSLCertVerificationError as error:
        return (
            f"its certificate is not trusted here ({error.verify_message}): is it signed by the "
            "CA that is named here (ca), for this host name?"
        )
    except ssl.SSLError as error:
        reason = str(error.reason)
        if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"):
            return "it does not speak TLS, and was called with it: write grpc:// in its address"
        if "ALERT" in reason:
            return _refused(access)
    return None


class _Talk:
    """TLS over a socket that stays the caller's to close.

    `SSLContext.wrap_socket` takes a socket over, and leaves it open if the other end is killed
    before it has looked whether there is one.
    """

    def __init__(
        self, plain: socket.socket, context: ssl.SSLContext, host: str | None = None
    ) -> None:
        self._plain = plain
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._secure = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    def shake_hands(self) -> None:
        self._until_done(self._secure.do_handshake)

    def hears(self) -> bool:
        """Whether the other end says anything before it hangs up."""
        try:
            return bool(self._until_done(lambda: self._secure.read(1)))
        except ssl.SSLEOFError:
            return False

    def _until_done(self, step: Callable[[], T]) -> T:
        while True:
            try:
                done = step()
            except ssl.SSLWantReadError:
                self._plain.sendall(self._outgoing.read())
                if data := self._plain.recv(1 << 16):
                    self._incoming.write(data)
                else:
                    self._incoming.write_eof()
            else:
                self._plain.sendall(self._outgoing.read())
                return done


def _refused(access: Access) -> str:
    if access.certificate is None:
        return (
            "it asks its callers for a certificate, and none is named here: name one that its CA "
            "has signed, with its key (certificate, key)"
        )
    return (
        "it does not take the certificate that is named here: is it signed by the CA that the site "
        "names, and in its time?"
    )


def _context(access: Access) -> ssl.SSLContext:
    authority = None if access.ca is None else access.ca.decode("ascii", "replace")
    context = ssl.create_default_context(cadata=authority)
    context.set_alpn_protocols(["h2"])
    if access.certificate is not None:
        with tempfile.TemporaryDirectory() as folder:  # which is for us alone
            chain, key = Path(folder, "chain"), Path(folder, "key")
            chain.write_bytes(access.certificate.chain)
            key.write_bytes(access.certificate.key)
            context.load_cert_chain(chain, key)
    return context
