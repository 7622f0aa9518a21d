"""Windowed joins of streams that live at distant sites, shipping as few bytes as possible.

The public names are in `dovetail.sites`, but for `live/`, which needs Arrow Flight.

After T. M. Tran and B. S. Lee, "Distributed stream join query processing with semijoins" (2010).

```
query        streams, windows, equalities, tau and delta; implied: equalities that follow
windows      by time, by count: which rows a head row meets
plan         a sequence of one-way joins for each stream
planner      greedy, exhaustive, joint: plans from costs
costs        what a plan will cost; formulas: what a one-way join sends; estimates: of the rows
statistics   measured while running; replanning: a new plan when they have changed
site         one stream's part: ticks and messages in, messages and results out
waiting      the rows that wait there; reports: what it is done with, for the owners of windows
schedule     which plan holds for which interval, and how sites agree on a new one
pace         when to probe and when to remove: by delta, or by heartbeats
oneway       the algorithms: SP-S, SM-S1, SM-S2 (source), SP-D, SM-D1, SM-D2 (destination)
copies       a window's copy elsewhere, and what its owner knows of it: no row goes twice
outlets      all copies of a window, as plans ask for them
entries      which keys a window has (V2, M2); bloom: a filter of them; compact: shorter vectors
rows         windows and their indexes; matching: rows with rows
arrivals     intervals out of rows, also out of order
snapshots    what a snapshot keeps of all these
messages     header and record batches; network: the one thing that a site needs
encoded      batches as bytes, validated when they are read; contents: what a message may hold
live/        sites as processes, over Arrow Flight, that survive being killed
virtual      a network and a clock inside one process
tree         one order for all streams, intermediate results kept; tree_costs: the cheapest
prefixes     results of a join of a tree, as a stream of the next
```
"""
