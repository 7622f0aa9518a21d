"""What SSBJ's inequality gives in the bytes of its paper, beside what the paper reports.

Equation (1) has 20 bytes for a waiting row and 4 for its node in the queue, and 120 for a cached
table row; it has nothing for a cached value's own entry, for what is remembered of values before
they are cached, or for the switching buffer. The inequality goes by the same bytes. The buffer of
a scan, the same for both joins, is left out.

The stream has skew 1. The table's keys are drawn with repetition, so the number of a key's rows is
Poissonian; its mean is the table's rows over the size of the domain.
"""

import math
from dataclasses import dataclass

from dovetail.costs.storage import DISK_7200
from dovetail.kernel.runs import INDEX_BYTES_PER_ROW
from dovetail.semistream.cache.parts import KEY_BYTES as OUR_KEY_BYTES
from dovetail_bench.result import significant
from dovetail_bench.semistream.relation import STREAM_ROW_BYTES, TABLE_ROW_BYTES
from dovetail_bench.ssbj.setup import PAPER_ROWS, WAITING_BYTES

NODE_BYTES = 4  # of a waiting row, in the queue
ROW_BYTES = STREAM_ROW_BYTES + NODE_BYTES  #: of a waiting row in all
KEY_BYTES = 8  # of a value's entry, where it is to count
MEMORIES = (0.01, 0.10)  #: of the table
PAPER_SETTLED = (0.39, 0.54)  #: of the rows, by the cache, in Fig. 5f
PAPER_MEMORY_ROWS, PAPER_RATE, PAPER_MEMORY_RATIO = 20_000_000, 51_242, 7.0  #: of Fig. 4
_MOST_MATCHES = 40  # of a key that is drawn: more do not happen
_EULER = 0.5772156649015329
_STEPS = 80  # of a bisection


@dataclass(frozen=True)
class Balance:
    """A scan's rows, split by the inequality into those of the cache and those that wait."""

    rows: float  #: of the stream that come in a scan
    cache_bytes: float
    settled: float  #: the share of the rows that the cache settles

    @property
    def nbytes(self) -> float:
        """Of the cache and of the rows that wait."""
        return self.cache_bytes + (1 - self.settled) * self.rows * ROW_BYTES

    @property
    def ratio(self) -> float:
        """MESHJOIN's memory over SSBJ's for as many rows in a scan.

        As both grow with the rows alone, it is also SSBJ's rows over MESHJOIN's in this memory.
        """
        return self.rows * ROW_BYTES / self.nbytes

    @property
    def most(self) -> float:
        """The most that a ratio of rates can be by (2) and (3), with the same memory.

        Where reading takes the time, that ratio is `ratio`. The more of it adding and expiring
        take, which only rows that wait need, the nearer it comes to this.
        """
        return 1 / (1 - self.settled)


def balance(
    table_rows: int, stream_rows: float, key_bytes: float = 0.0, domain: float = 1.0
) -> Balance:
    """Of so many stream rows in a scan; `domain` is the number of keys, in table rows."""
    keys = table_rows * domain
    harmonic = _harmonic(keys)
    cache = settled = 0.0
    for m in range(_MOST_MATCHES):
        share = math.exp(-1 / domain) / (domain**m * math.factorial(m))
        entry = m * TABLE_ROW_BYTES or key_bytes
        # the ranks whose values are cached: a value has stream_rows / (rank * harmonic) rows
        ranks = stream_rows * STREAM_ROW_BYTES / (entry * harmonic) if entry else keys
        ranks = min(ranks, keys)
        if ranks >= 1:
            cache += share * ranks * entry
            settled += share * _harmonic(ranks) / harmonic
    return Balance(stream_rows, cache, settled)


def balance_in(
    memory: float, table_rows: int, key_bytes: float = 0.0, domain: float = 1.0
) -> Balance:
    """With as many rows in a scan as fill a memory, which is a share of the table."""
    room = memory * table_rows * TABLE_ROW_BYTES
    low, high = 0.0, 1e4 * table_rows
    for _ in range(_STEPS):
        middle = (low + high) / 2
        fits = balance(table_rows, middle, key_bytes, domain).nbytes <= room
        low, high = (middle, high) if fits else (low, middle)
    return balance(table_rows, low, key_bytes, domain)


def rows_for(ratio: float, table_rows: int) -> float:
    """The stream rows of a scan, in table rows, with which the inequality gives this ratio."""
    low, high = 1e-6, 1e4
    for _ in range(_STEPS):
        middle = (low + high) / 2
        less = balance(table_rows, middle * table_rows).ratio < ratio
        low, high = (middle, high) if less else (low, middle)
    return low


def _harmonic(count: float) -> float:
    return math.log(count) + _EULER + 1 / (2 * count)


def rows_in_a_scan() -> list[float]:
    """Of Fig. 4, in table rows: while a disk is read at its speed, and at half of that."""
    seconds = PAPER_MEMORY_ROWS * TABLE_ROW_BYTES / DISK_7200.bytes_per_second
    return [slowness * seconds * PAPER_RATE / PAPER_MEMORY_ROWS for slowness in (1, 2)]


def theory(rows: int) -> dict[str, str]:
    """How the paper's 7 to 8 times stand to its equations and to each other."""
    whole = [balance_in(memory, PAPER_ROWS) for memory in MEMORIES]
    here = [balance_in(memory, rows) for memory in MEMORIES]
    entries = [balance_in(memory, PAPER_ROWS, KEY_BYTES) for memory in MEMORIES]
    wider = [balance_in(memory, PAPER_ROWS, domain=2.0) for memory in MEMORIES]
    millions = PAPER_ROWS // 1_000_000
    return {
        "by the inequality": "in the paper's bytes (20 + 4 a waiting row, 120 a cached table row, "
        "and nothing for anything else), at skew 1 and with as many keys as table rows, rows of a "
        f"scan or memory are {_at(whole)} for its {millions} million rows, where it reports rates "
        f"of 7 and 8 times; skew 1 brings less in a smaller table: {_at(here)} for {rows:,} rows",
        "by equations (2) and (3)": "a ratio of rates is that of the rows of a scan where reading "
        "takes the time; where adding and expiring do, it is 1 over the share of rows that wait, "
        f"and that is {_at(whole, most=True)}",
        "what it hangs on": "how large the domain is the paper does not say. With twice as many "
        f"keys as table rows it would be {_at(wider)}; with {KEY_BYTES} bytes for a cached value "
        f"without table rows, and as many keys as rows, {_at(entries)}",
        "Fig. 5a, b, c": f"for one and the same point ({millions} million rows, 1.12 GB, skew 1) "
        "(a) and (c) have 8 times, and (b) has 5.7",
        "Fig. 5f": f"with {_to(PAPER_SETTLED, '.0%')} of the rows settled by the cache, rates can "
        f"be at most {_to([1 / (1 - share) for share in PAPER_SETTLED], '.1f')} times as high, by "
        "either count",
        "Fig. 4": _figure_4(),
        "here": "a waiting row takes up "
        f"{STREAM_ROW_BYTES + INDEX_BYTES_PER_ROW + WAITING_BYTES} bytes, a cached value "
        f"{OUR_KEY_BYTES} besides its rows, and what is noted of values and the switching buffer "
        "count; in the group `paper` memory is as the paper counts it",
    }


def _figure_4() -> str:
    shares = rows_in_a_scan()
    ratios = [balance(PAPER_MEMORY_ROWS, share * PAPER_MEMORY_ROWS).ratio for share in shares]
    needed = rows_for(PAPER_MEMORY_RATIO, PAPER_MEMORY_ROWS)
    speed = DISK_7200.bytes_per_second / 1e6
    return (
        f"{PAPER_MEMORY_RATIO:g} times less memory need {needed:.1f} stream rows for each table "
        f"row while the table of {PAPER_MEMORY_ROWS // 1_000_000} million is read once, by the "
        f"inequality. At {PAPER_RATE:,} rows a second, from a disk of {speed:g} MB/s or half of "
        f"that, {_to(shares, '.0%')} of the table come, which gives {_to(ratios, '.1f')}"
    )


def _at(found: list[Balance], *, most: bool = False) -> str:
    values = [one.most if most else one.ratio for one in found]
    return " and ".join(
        f"{value:.1f} times at {memory:.0%}" for value, memory in zip(values, MEMORIES, strict=True)
    )


def _to(ends: "list[float] | tuple[float, ...]", form: str) -> str:
    return " to ".join(f"{one:{form}}" for one in ends)


def analytic(*sizes: int) -> dict[str, dict[str, float | None]]:
    """By the inequality and (1), for the paper's table and for others."""
    return {
        f"{size:,} rows, {name}": {
            f"memory={memory:.0%}": significant(balance_in(memory, size, key_bytes).ratio)
            for memory in MEMORIES
        }
        for size in dict.fromkeys((PAPER_ROWS, *sizes))
        for name, key_bytes in (("entries free", 0.0), (f"entries of {KEY_BYTES} bytes", KEY_BYTES))
    }
