"""`semi-*`: joins over distant sites, measured as in the paper that they come from.

T. M. Tran and B. S. Lee, "Distributed stream join query processing with semijoins" (2010), Sect. 5.
See `semi_runs` for what is measured, and how.
"""

from dovetail_bench import (
    semi_bound,
    semi_equal,
    semi_oneway,
    semi_pace,
    semi_plans,
    semi_real,
)

BENCHMARKS = (
    semi_oneway.BENCHMARK,
    semi_plans.BENCHMARK,
    semi_equal.BENCHMARK,
    semi_real.BENCHMARK,
    semi_bound.BENCHMARK,
    semi_pace.BENCHMARK,
)
