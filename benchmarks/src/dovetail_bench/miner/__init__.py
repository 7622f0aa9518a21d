"""`miner-*`: the multi-way figures of the DINER paper, in virtual time.

`figures` what is drawn · `measure` all contenders on the same inputs · `runs` the inputs, and a
join under a virtual clock · `bound` the most that could be found · `readings` what the paper
leaves open.
"""
