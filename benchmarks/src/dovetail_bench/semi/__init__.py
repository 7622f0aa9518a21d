"""`semi-*`: joins over distant sites, measured as in the paper that they come from.

T. M. Tran and B. S. Lee, "Distributed stream join query processing with semijoins" (2010), Sect. 5.
See `runs` for what is measured, and how; `spark` has the two ends on Spark.
"""

from dovetail_bench.semi import bound as semi_bound
from dovetail_bench.semi import equal as semi_equal
from dovetail_bench.semi import oneway as semi_oneway
from dovetail_bench.semi import pace as semi_pace
from dovetail_bench.semi import plans as semi_plans
from dovetail_bench.semi import real as semi_real

BENCHMARKS = (
    semi_oneway.BENCHMARK,
    semi_plans.BENCHMARK,
    semi_equal.BENCHMARK,
    semi_real.BENCHMARK,
    semi_bound.BENCHMARK,
    semi_pace.BENCHMARK,
)
