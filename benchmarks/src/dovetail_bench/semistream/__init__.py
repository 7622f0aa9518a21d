"""A stream and a staged table under a virtual clock, for `ssbj-*` and `mesh-*`.

`relation` the rows of both · `runs` a join that is driven iteration by iteration, and counted.
"""
