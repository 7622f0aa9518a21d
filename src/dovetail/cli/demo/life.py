"""Two streams as they are in life: payments follow their orders, and some orders are hot.

It is half a day of a shop; with more rows, of a busier one. Orders are numbered as they come. Most
are paid once, some minutes later, some in parts, and some not at all. A few are group orders, paid
by dozens or hundreds of people, who take more time. Delays are log-normal: most are of minutes, few
of half an hour. A payment that would come after the last order is not in the stream. A few payments
name an order that is not there, and a few none.

Both streams are cut by time into files that arrive in turn, so that a file of payments pays orders
of its own time and of the files before. Everything follows from the seed.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.cli.demo.data import KEY, NULL_SHARE, Streams, letters, write_stream

FILES = 100  #: of each stream at most; one arrives in each micro-batch
FIRST_ORDER = 1_000_001
LASTS_S = 20_000
PAID_ONCE, PAID_TWICE, PAID_THRICE = 0.80, 0.04, 0.01  #: of the orders; the rest is not paid
GROUP_SHARE = 1 / 400  #: of the orders
LEAST_GROUP, LARGEST_GROUP = 20, 800  #: people
UNKNOWN_SHARE = 1 / 500  #: of the payments, those of no order
_GROUP_EXPONENT = 1.2  # of Pareto's law for their sizes
_MEDIAN_DELAY_S, _GROUP_MEDIAN_DELAY_S = 90.0, 180.0
_SPREAD = 0.8  # of the logarithm of a delay
_ROWS_WORTH_A_FILE = 250
_BEGIN_S = 1_767_603_600  # 2026-01-05, 09:00 UTC
_CITIES = ("Aarhus", "Bilbao", "Cork", "Dresden", "Eger", "Florence", "Ghent", "Helsinki")
_ITEMS = ("bread", "chair", "lamp", "notebook", "raincoat", "teapot", "ticket", "umbrella")
_METHODS = ("card", "direct debit", "transfer", "voucher")

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Rng = np.random.Generator


@dataclass(frozen=True)
class Payments:
    """Who pays which order when, in the order of time."""

    order: Ints  #: by its place among the orders
    at: Floats  #: in seconds after the first order


def make_life(directory: Path, rows: int, seed: int) -> Streams:
    """Write so many orders, and their payments, below `directory`.

    Payments come first in all that is made: it is they that look for an order.
    """
    rng = np.random.default_rng(seed)
    ordered_at = np.sort(rng.random(rows)) * LASTS_S
    paid = _payments(rng, ordered_at)
    payments, found = _payment_rows(rng, paid, rows)
    orders = _order_rows(rng, ordered_at)
    files = max(1, min(FILES, rows // _ROWS_WORTH_A_FILE))
    edges = np.linspace(0, LASTS_S, files + 1)[1:-1]
    cuts = np.searchsorted(paid.at, edges)
    # a payment comes after its order: with its file the pair is there
    pairs = np.concatenate([[0], np.cumsum(found)])[[*cuts, len(found)]]
    return Streams(
        write_stream(directory / "payments", payments, cuts),
        write_stream(directory / "orders", orders, np.searchsorted(ordered_at, edges)),
        tuple(pairs.tolist()),
    )


def _payments(rng: Rng, ordered_at: Floats) -> Payments:
    orders = len(ordered_at)
    shares = np.cumsum([PAID_THRICE, PAID_TWICE, PAID_ONCE])
    times = 3 - np.searchsorted(shares, rng.random(orders))
    is_group = rng.random(orders) < GROUP_SHARE
    people = LEAST_GROUP * (1 - rng.random(orders)) ** (-1 / _GROUP_EXPONENT)
    times = np.where(is_group, np.minimum(people, LARGEST_GROUP).astype(np.int64), times)
    order = np.repeat(np.arange(orders), times)
    median = np.where(is_group[order], _GROUP_MEDIAN_DELAY_S, _MEDIAN_DELAY_S)
    at = ordered_at[order] + median * np.exp(_SPREAD * rng.standard_normal(len(order)))
    by_time = np.argsort(at)
    by_time = by_time[at[by_time] < LASTS_S]
    return Payments(order[by_time], at[by_time])


def _payment_rows(rng: Rng, paid: Payments, orders: int) -> tuple[pa.Table, Bools]:
    """The payments as rows, and which of them find their order."""
    count = len(paid.order)
    kind = rng.random(count)
    without = kind < NULL_SHARE
    unknown = (kind >= NULL_SHARE) & (kind < NULL_SHARE + UNKNOWN_SHARE)
    numbers = FIRST_ORDER + np.where(unknown, orders + paid.order, paid.order)
    table = pa.table(
        {
            KEY: pa.array(numbers, mask=without),
            "payer": _customers(rng, count, orders),
            "method": pa.array(np.array(_METHODS)[rng.integers(0, len(_METHODS), count)]),
            "reference": letters(rng, count),
            "paid": pa.array(rng.integers(100, 20_000, count) / 100),
            "paid_at": _times(paid.at),
        }
    )
    return table, ~(without | unknown)


def _order_rows(rng: Rng, ordered_at: Floats) -> pa.Table:
    count = len(ordered_at)
    return pa.table(
        {
            KEY: pa.array(FIRST_ORDER + np.arange(count)),
            "customer": _customers(rng, count, count),
            "item": pa.array(np.array(_ITEMS)[rng.integers(0, len(_ITEMS), count)]),
            "street": letters(rng, count),
            "city": pa.array(np.array(_CITIES)[rng.integers(0, len(_CITIES), count)]),
            "amount": pa.array(rng.integers(100, 20_000, count) / 100),
            "ordered_at": _times(ordered_at),
        }
    )


def _customers(rng: Rng, count: int, orders: int) -> pa.Array:
    """Names of customers, of whom there are a fifth as many as orders."""
    return pa.array(np.char.mod("customer-%06d", rng.integers(0, max(1, orders // 5), count)))


def _times(seconds: Floats) -> Any:
    microseconds = ((_BEGIN_S + seconds) * 1e6).astype(np.int64)
    return pa.array(microseconds).cast(pa.timestamp("us", tz="UTC"))
