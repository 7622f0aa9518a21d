"""Benchmarks of streaming queries: `spark-*` and `cost-growth`.

`runs` queries as contenders, in one session · `two_way`, `multi_way`, `enrich`, `diner`,
`cost_growth` a benchmark each, the others their parts.
"""
