"""DINER: the operator, what it keeps in memory, and its work on disk.

`operator` arrival, flushing, phases · `regions`, `index`, `flushing` which rows go · `lists`,
`meeting` the blocks and which of them have met · `joins` ReactiveNL · `sweep`, `sorting`, `costs`
Cleanup by ranges of codes · `loads` rows in memory that are on disk as well.
"""
