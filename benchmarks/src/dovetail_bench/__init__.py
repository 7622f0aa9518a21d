"""Benchmarks: ratios with their spread, measured side by side in one process tree.

A folder for each group of them:

`spark` streaming queries · `enrich`, `mesh`, `ssbj` a stream and a table, with `semistream` for
what the last two share · `diner`, `miner` the figures of that paper, in virtual time · `semi` joins
of streams at distant sites.

What they share:

`registry` what a benchmark is, and which there are · `runner` one way through all points and
repetitions · `measure` contenders interleaved, and paired ratios · `result` what was found, goals,
and its JSON · `report` charts and a table of what was saved · `charts` those that a result brings
along · `scratch` room on disk · `machine` where it ran · `progress` what to look at meanwhile ·
`data` the relations that Spark and the batch engines join · `kernel_runs`, `parallel` the operators
by themselves, DuckDB and Polars · `growth` whether cost grows with the state · `compare` two
checkouts · `cli` the commands.

A new benchmark is a module with a `BENCHMARKS` tuple; `registry.MODULES` names it.
"""
