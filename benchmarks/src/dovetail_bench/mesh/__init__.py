"""`mesh-*`: MESHJOIN and Seek on a table's disk, the figures of the MESHJOIN paper.

`figures` over memory and skew, beside index nested loops · `model`, `pages` the cost model, over
the pages read at a time too · `load` Seek over the arrival rate · `shedding` what each strategy
keeps, beside `offline_shed`, the optimum · `notes` how the paper counts.
"""
