"""The two-way figures of the DINER paper, at the level of the operators and in virtual time.

Bornea, Vassalos, Kotidis and Deligiannakis, "Adaptive Join Operators for Result Rate Optimization
on Streaming Inputs", section 5. One module for each group of figures:

`streams` the relations and when their rows come · `rivals` joins that the library has not ·
`simulate` a join under a virtual clock · `figure` points, ratios and facts · `synthetic` made-up
keys · `real` temperatures, and bands · `timed` results over time, and pauses · `blocking` joins
that wait · `bounds` the shares of the clairvoyant bound, `clairvoyant` that bound.
"""
