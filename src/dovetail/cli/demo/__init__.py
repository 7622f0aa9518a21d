"""`dovetail demo`: the main jobs on local Spark, with data that it makes, checked in the end.

`main` the command itself · `join` two streams, `enrich` a stream and a table · `data` what is made
up · `check` the comparison with Spark's batch join.
"""

from dovetail.cli.demo.main import EXAMPLES, NAME, command

__all__ = ["EXAMPLES", "NAME", "command"]
