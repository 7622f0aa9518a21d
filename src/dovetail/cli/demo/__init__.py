"""`dovetail demo`: the main jobs on local Spark, with data that it makes, checked in the end.

`main` the command itself · `join` two streams, `enrich` a stream and a table · `life` streams as
they are in life, `data` all else that is made up · `rival` Spark's own join beside ours, and `view`
both of them drawn · `scene` where all of it runs · `check` the comparison with Spark's batch join.
"""

from dovetail.cli.demo.main import EXAMPLES, NAME, command

__all__ = ["EXAMPLES", "NAME", "command"]
