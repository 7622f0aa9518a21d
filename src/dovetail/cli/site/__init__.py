"""Joins of streams at distant sites: `dovetail site`.

`command` its subcommands · `file` what describes a site or a query, with `planpart`, how its plan
is chosen · `inputs` the rows of its streams · `plan` the plan, chosen and shown · `run` a query,
run and watched · `views` what it looks like.
"""
