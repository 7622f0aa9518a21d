"""What each one-way join sends and computes in an interval (Appendix B).

One function for each algorithm, with the paper's terms in the paper's order. Some of them are
damaged in the text, or do not follow from the algorithm; what is used in their place, and why:

- `k_2 (1 - f_12)`, the keys that SM-S2 asks for (`dV'_2`), and with `F_S2` their rows. `1 - f_12`
  is the share of S1's keys that S2 lacks, so this counts what is never asked for. A key is asked
  for once in its life in the window, if the flow has it in that time (`Meeting.fills`). Its rows
  count with `s_F`.
- `m_2 (1 - f_21)`, the new entries `v_J` of SM-S2 and SM-D1: the share of S2's keys that S1 lacks,
  but an entry is new to the window whatever S1 has. They are the rows that find no other of their
  key there (`Meeting.births`). The counts `v_C` have no term: one for each key in the window.
- `wp_2 f_21 F_S2`, the rows `s_F` of SM-S2, stands behind the bracket of `S(...)`, as bytes in a
  sum of times. The line above it has them in one shipment with `v_C` and `v_J`. A row is sent if
  its key has been asked for, before it came or while it is there (`Meeting.f_21_filled`).
- `C_ship[B_1]`, the last shipment of SM-D2, has lost its prime: its expansion has `f_12` of them.
- `S(c)` of SM-S1 is sent in every interval; here, if rows that were sent have left the window.
- `c_i` (insert) is missing in Table 4, which has `c_u` (update) for the same in SP-S; both are
  `insert`. `c_h`, to look up a hash table, is `probe`.

When every key is in the window all the time, `births` and `fills` are 0, and `f_12`, `f_21` and
`f_21_filled` are Table 4's `min(1, f_i / f_j)`. `costs` says what else differs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from dovetail.multisite.bloom import ASKING_ERROR, ERROR, bits_for
from dovetail.multisite.estimates import Meeting
from dovetail.multisite.plan import Algorithm

KEY_BYTES = 8.0  #: `P_S`: a key travels as its code
_COUNT_BYTES = 1.0  # of an entry of v_C, unless a key has more than 255 rows
_NUMBER_BYTES = 2.0  # of a row that is not sent with its neighbours
_TIME_BYTES = 8.0  # of a row's time, for windows by count


@dataclass(frozen=True)
class Sent:
    """A kind of message: how many in an interval, and the bytes in all of them.

    What concerns the copy of a window is sent once for all steps that use it. `shared` says what it
    is; of the rows of the sender's own stream, `share` is the part that is sent, and `within` the
    part that can be: rows whose key the other stream has at all.
    """

    messages: float
    nbytes: float
    from_source: bool
    shared: str = ""
    share: float = 0.0
    within: float = 1.0
    at_once: bool = False  #: as soon as the flow is there; of a head's rows, when intervals end


@dataclass(frozen=True)
class Work:
    """Rows in an interval: that probe a window, and that enter or leave one besides the flow."""

    probes: float
    inserts: float


Terms = tuple[list[Sent], Work]
ROWS = "rows"
UPDATES = "updates"


def _some(expected: float) -> float:
    """The chance that there is something to send, if so much is expected."""
    return -math.expm1(-expected)


def _updates(m: Meeting, share: float = 1.0) -> Sent:
    """The messages about rows that have come or gone, in which an interval may lack either."""
    rows = m.stored.rate * m.tau * share
    return Sent(_some(rows if m.by_count else 2 * rows), 0.0, False, UPDATES)


def _copied(m: Meeting, share: float, within: float, *, on_request: bool = False) -> list[Sent]:
    """What the owner sends so that its copy has a share of the rows, and knows the ranks.

    `on_request`: rows go in an answer, and only those that leave take a message of their own.
    """
    rows = share * m.stored.rate * m.tau
    row_bytes = m.stored.row_bytes + (_NUMBER_BYTES if share < 1 else 0.0)
    sent = [Sent(0.0, rows * row_bytes, False, ROWS, share, within)]
    if m.by_count:
        sent.append(Sent(0.0, m.stored.rate * m.tau * _TIME_BYTES, False, "clock"))
    alone = on_request and not m.by_count
    return [*sent, _updates(m, share / 2) if alone else _updates(m)]


def _entries(m: Meeting) -> list[Sent]:
    """What the owner sends so that its copy knows the keys: `v_J` and `v_C`."""
    counts = m.window_keys * _COUNT_BYTES
    if m.compact:
        counts = min(counts, m.changing_keys * (_COUNT_BYTES + _place_bytes(m.window_keys)))
    nbytes = m.births * m.tau * KEY_BYTES + counts
    return [Sent(0.0, nbytes, False, f"entries of {m.label}"), _updates(m)]


def _place_bytes(places: float) -> float:
    return 1.0 if places <= 1 << 8 else 2.0 if places <= 1 << 16 else 4.0


def _probing(m: Meeting, share: float, within: float = 1.0, *, at_once: bool = False) -> Sent:
    """A share of the flow, sent to the window."""
    rows = share * m.flow.rate * m.tau
    return Sent(
        m.chance(share), rows * m.flow.row_bytes, True, share=share, within=within, at_once=at_once
    )


def _sp_s(m: Meeting) -> Terms:
    return _copied(m, 1.0, 1.0), Work(m.flow.rate * m.tau, m.stored.rate * m.tau)


def _sp_d(m: Meeting) -> Terms:
    return [_probing(m, 1.0, at_once=True)], Work(m.flow.rate * m.tau, 0.0)


def _sm_s1(m: Meeting) -> Terms:
    asks = m.chance()
    sent = [
        Sent(asks, m.batch_keys * KEY_BYTES, True, at_once=True),
        Sent(asks, 0.0, False),
        *_copied(m, m.f_21, m.share_2, on_request=True),
    ]
    return sent, Work(m.batch_keys + m.flow.rate * m.tau, m.stored.rate * m.tau * m.f_21)


def _sm_s1_bloom(m: Meeting) -> Terms:
    asks = m.chance()
    filter_bytes = bits_for(math.ceil(m.batch_keys), ASKING_ERROR) / 8
    by_error = (1 - m.f_21) * (1 - (1 - ASKING_ERROR) ** (asks * m.retained / m.tau))
    share = m.f_21 + by_error
    sent = [
        Sent(asks, filter_bytes + asks * 8, True, at_once=True),
        Sent(asks, 0.0, False),
        *_copied(m, share, 1.0, on_request=True),
    ]
    probes = m.stored.rate * m.retained + m.flow.rate * m.tau
    return sent, Work(probes, m.stored.rate * m.tau * share)


def _sm_s2(m: Meeting) -> Terms:
    asked = m.fills * m.tau
    asks = _some(asked)
    sent = [
        *_copied(m, m.f_21_filled, m.share_2),
        *_entries(m)[:1],
        Sent(asks, asked * KEY_BYTES, True),
        Sent(asks, 0.0, False),
    ]
    rows = m.stored.rate * m.tau * (2 + m.f_21_filled)
    return sent, Work(m.flow.rate * m.tau * 2 + asked, rows + m.births * m.tau * 2)


def _sm_d1(m: Meeting) -> Terms:
    rows = m.flow.rate * m.tau * m.f_12
    changes = m.stored.rate * m.tau * 2 + m.births * m.tau * 2
    return [*_entries(m), _probing(m, m.f_12, m.share_1)], Work(m.flow.rate * m.tau + rows, changes)


def _sm_d1_bloom(m: Meeting) -> Terms:
    share = m.f_12 + (1 - m.f_12) * ERROR
    updates = _updates(m)
    nbytes = updates.messages * (bits_for(math.ceil(m.window_keys)) / 8 + 8)
    sent = [
        Sent(0.0, nbytes, False, f"filter of {m.label}"),
        updates,
        _probing(m, share),
    ]
    return sent, Work(m.flow.rate * m.tau * (1 + share), m.stored.rate * m.retained)


def _sm_d2(m: Meeting) -> Terms:
    asks = m.chance()
    found = m.batch_keys * m.f_12 * KEY_BYTES
    if m.compact:
        found = min(found, m.batch_keys / 8 + asks / 2)
    sent = [
        Sent(asks, m.batch_keys * KEY_BYTES, True, at_once=True),
        Sent(asks, found, False),
        _probing(m, m.f_12, m.share_1),
    ]
    return sent, Work(m.batch_keys + m.flow.rate * m.tau * (1 + m.f_12), 0.0)


FORMULAS: dict[Algorithm, Callable[[Meeting], Terms]] = {
    Algorithm.SP_S: _sp_s,
    Algorithm.SP_D: _sp_d,
    Algorithm.SM_S1: _sm_s1,
    Algorithm.SM_S2: _sm_s2,
    Algorithm.SM_D1: _sm_d1,
    Algorithm.SM_D2: _sm_d2,
    Algorithm.SM_S1B: _sm_s1_bloom,
    Algorithm.SM_D1B: _sm_d1_bloom,
}
