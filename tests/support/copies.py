"""What the copies of windows at other sites rely on, asserted."""

import numpy as np

from dovetail.multisite.copies import Copy
from dovetail.multisite.messages import PLANNER, SEPARATOR, Message
from dovetail.multisite.virtual import Simulation


def check_copy(copy: Copy) -> None:
    """Every filled key has as many rows here as its owner counts (Algorithm 9, line 36)."""
    for label, entries in copy.entries.items():
        filled = entries.codes[entries.filled]
        for key, index in copy.store.indexes.items():
            if SEPARATOR.join(key.stored) != label or not len(filled) or entries.frozen:
                continue
            alive = (copy.store.numbers >= copy.store.first) & index.valid.values
            ordered = np.sort(index.codes.values[alive])
            here = np.searchsorted(ordered, filled, "right") - np.searchsorted(ordered, filled)
            assert (here == entries.counts[entries.filled]).all(), (label, filled, here)


def check_copies_of(simulation: Simulation) -> None:
    """From now on, check the copies of a site after every message to it."""
    deliver = simulation.deliver

    def delivered(message: Message) -> None:
        deliver(message)
        if message.header.receiver != PLANNER:
            site = simulation.sites[simulation.query.names[message.header.receiver]]
            for copy in site.copies.values():
                check_copy(copy)

    simulation.deliver = delivered  # type: ignore[method-assign]
