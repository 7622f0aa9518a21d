"""What the tests of every operator share; no Spark, and nothing of the product uses it.

`generators` relations with every key type and any skew · `arrivals` in which order and when rows
come · `oracle` the right answer, computed independently · `conformance` drives any operator
through a script and compares · `sites` the answer of a windowed join, `site_hosts` its hosts in one
process, `shipping` which rows were sent · `processes` what a process needs to import all this.
"""
