"""The network protocol of a site: to send.

Messages of one sender to one receiver arrive in the order in which they were sent, as over TCP. How
they travel, and how long, is the network's business: `virtual` delivers them inside one process.
"""

from typing import Protocol

from dovetail.multisite.messages import Message


class Network(Protocol):
    """Takes messages; whoever drives the sites hands them to `receive` of the addressed one."""

    def send(self, message: Message) -> None:
        """Send to `message.header.receiver`. Does not wait for delivery."""
