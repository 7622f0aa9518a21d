"""Joins that scan the whole table in a circle: MESHJOIN (`meshjoin`, `packets`), SSBJ (`ssbj`)."""
