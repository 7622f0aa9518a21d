"""`enrich-*`: joins of a stream with a table, without Spark, beside DuckDB and SQLite.

`kernel` at one size · `growth` over sizes · `contenders`, `load` what both have in common.
"""
