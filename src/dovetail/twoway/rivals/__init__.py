"""The rivals of DINER and XJoin, for comparison.

`hmj`, `rpj`, `dphj`, `pmj` the operators · `partitioned` flushes by the cell · `merging`,
`segments`, `windows` sorted segments that are merged.
"""
