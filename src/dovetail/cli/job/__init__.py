"""Jobs that a file describes: `dovetail run` and `dovetail explain`.

`file` a job file, checked, with `options`, its table that says how to join · `execution` the job as
Spark carries it out · `places` where its results and state are · `run`, `explain` the commands.
"""
