"""Compact encodings of two vectors of the paper; the shorter one is sent.

- Counts (`v_C`): those of all keys in order, or of the keys whose count has changed, with their
  places. In a large window few keys change in an interval.
- Keys that were found (`K'_1`): the keys, or a bit for each key that was asked for, as in the PERF
  join of Li and Ross (1995).

With `Query.compact` off, all is sent as in the paper.
"""

import numpy as np
import pyarrow as pa

from dovetail.kernel.keys import Codes
from dovetail.multisite.messages import Message, column, narrowed
from dovetail.multisite.windows import Mask, Numbers


def counts_parts(before: Numbers, counts: Numbers, compact: bool) -> dict[str, pa.RecordBatch]:
    """The parts `counts` and, if only some are sent, `places`."""
    dense = narrowed(counts)
    if compact:
        changed = np.flatnonzero(counts != before)
        places, new = narrowed(changed), narrowed(counts[changed])
        if places.nbytes + new.nbytes < dense.nbytes:
            return {"places": column(places), "counts": column(new)}
    return {"counts": column(dense)}


def all_counts(before: Numbers, counts: Numbers, places: Numbers | None) -> Numbers:
    """What `counts_parts` was given; `before` has a 0 for every new key."""
    if places is None:
        return counts
    found = before.copy()
    found[places] = counts
    return found


def found_parts(keys: Codes, found: Mask, compact: bool) -> dict[str, pa.RecordBatch]:
    """The part `found`, or `bits`; none if no key was found."""
    if not found.any():
        return {}
    bits = np.packbits(found)
    if compact and bits.nbytes < keys[found].nbytes:
        return {"bits": column(bits)}
    return {"found": column(keys[found])}


def found_keys(message: Message, asked: Codes) -> Codes:
    """The keys that were found, of those that were asked for."""
    if "bits" not in message.parts:
        return message.array("found")
    bits = np.asarray(message.parts["bits"].column(0))
    found: Codes = asked[np.unpackbits(bits, count=len(asked)).astype(bool)]
    return found
