"""`ssbj-*`: SSBJ beside MESHJOIN, the figures of its paper, under a virtual clock.

Naeem, Weber and Lutteroth, "A Memory-Optimal Many-to-Many Semi-Stream Join", section 4. Stream rows
have 20 bytes and table rows 120, as there. The table's keys are drawn with repetition, so that some
values have no row and some have several; labels with `unique` are for a table that has every key
once. Stream keys are Zipfian over the same domain. How time is counted: see `semistream.runs`.

Memory is what rows that wait take up with their index, and for SSBJ the cache with all that it
needs to change: notes of the values that were seen, and the switching buffer. A scan's buffer comes
on top and is the same for both. It holds codes alone, so a scan may take 12 iterations where the
papers', with whole pages in the buffer, takes hundreds; a ratio of rates does not depend on that.

`ssbj-rate` (Fig. 5a, b, c, f): each join takes as many rows in an iteration as fill its memory.
SSBJ gets rows until enough of them have to wait; the rest are settled by the cache. The group
`budget` lets the operators decide by themselves inside a budget: `whole`, fed like that, and
`pieces`, where batches of a third of `w` rows are just pushed.
`ssbj-memory` (Fig. 4a, b): as many rows as arrive at a rate; the memory that takes.
Both have a group `paper`, with memory as the paper counts it and a table of ten times the rows (see
`paper`), and say what the paper's equations give (see `theory`).
`ssbj-factor` (Fig. 6a): the rate with the switching factor 1 over that with others.
`ssbj-buffer` (Fig. 6b): the rate with the pages that the cost model chooses over that with others;
here the buffer's whole pages count as memory, as in the paper.
`ssbj-model` (Fig. 6c, d): predicted and measured seconds of a loop; these are wall time.
`ssbj-tpch` (Fig. 5d): customers and orders of TPC-H.
"""

from dovetail_bench.registry import Benchmark
from dovetail_bench.ssbj.memory import run_memory
from dovetail_bench.ssbj.model import run_model
from dovetail_bench.ssbj.rate import run_rate
from dovetail_bench.ssbj.setup import ROWS
from dovetail_bench.ssbj.tpch import CUSTOMERS, run_tpch
from dovetail_bench.ssbj.tuning import run_buffer, run_factor

BENCHMARKS = (
    Benchmark(
        "ssbj-rate",
        "SSBJ's rate over MESHJOIN's with the same memory; virtual time",
        rows=ROWS,
        rows_mean="table rows",
        groups=("memory", "size", "skew", "unique", "budget", "paper"),
        function=run_rate,
    ),
    Benchmark(
        "ssbj-memory",
        "MESHJOIN's memory over SSBJ's at the same rate; virtual time",
        rows=ROWS,
        rows_mean="table rows",
        groups=("rate", "size", "unique", "paper"),
        function=run_memory,
    ),
    Benchmark(
        "ssbj-factor",
        "the switching factor of SSBJ: the rate with 1 over that with others; virtual time",
        rows=ROWS,
        rows_mean="table rows",
        groups=("factor",),
        function=run_factor,
    ),
    Benchmark(
        "ssbj-buffer",
        "the pages that SSBJ reads at a time: the chosen number against others; virtual time",
        rows=ROWS,
        rows_mean="table rows",
        groups=("buffer",),
        function=run_buffer,
    ),
    Benchmark(
        "ssbj-model",
        "the cost models of SSBJ and MESHJOIN against their wall time on this machine",
        rows=ROWS,
        rows_mean="table rows",
        groups=("model",),
        function=run_model,
    ),
    Benchmark(
        "ssbj-tpch",
        "SSBJ against MESHJOIN on customers and orders of TPC-H; virtual time",
        rows=CUSTOMERS,
        rows_mean="customers",
        groups=("tpch",),
        function=run_tpch,
    ),
)
