"""Benchmarks: ratios with their spread, measured side by side in one process tree.

`registry` what a benchmark is, and which there are · `result` what one found, and its JSON ·
`measure` interleaved repetitions and paired ratios · `data` the relations they join ·
`kernel_runs` the operators by themselves, DuckDB and Polars · `spark_runs` streaming queries ·
`spark_two_way`, `cost_growth` one benchmark each · `diner` the figures of that paper, in virtual
time · `report` charts and a table of what was saved · `charts` those that a result brings along ·
`machine` where it ran · `progress` what to look at meanwhile · `cli` the commands.

A new benchmark is a module with a `BENCHMARKS` tuple; `registry.MODULES` names it.
"""
