"""The Spark runtime: the only part of Dovetail that imports pyspark.

`plan` DataFrames to a DataFrame · `layout` both inputs in one row format · `step` what a task does
in a micro-batch · `state` versions on disk · `clock` the source that makes silent streams tick ·
`endings` when an input counts as ended · `metrics` records of what happened · `session` local
sessions and environment checks.
"""
