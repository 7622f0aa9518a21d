"""The staged table: how it is written, and read.

`writing` · `reading` pages of codes, and rows · `records`, `recordfile` rows as records · `mapping`
mapped files · `gathering` rows in an order of one's own.
"""
