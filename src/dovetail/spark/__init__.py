"""The Spark runtime: the only part of Dovetail that imports pyspark.

`jobs` how each job is planned, carried out and explained · `step` what a task does in a
micro-batch · `state` versions on disk, and records of what happened · `sources` the clock, tables
and sites · `layout` all inputs in one row format · `endings` when an input counts as ended ·
`grouping` things with bytes · `session` local sessions and environment checks.
"""
