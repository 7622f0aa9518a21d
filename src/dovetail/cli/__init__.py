"""The command `dovetail`.

`app` the command itself · `failures` what it says about errors · `job/` the jobs that a file
describes: `run` and `explain` · `site/` queries over distant sites · `demo/`, `top`, `checkup`
(which shows what `doctor` finds) the other subcommands · `sections` a table of a file, checked ·
`watch` and `views` what a running join looks like · `session` how Spark is started · `stopping`
what Ctrl-C and SIGTERM do · `examples` what stands below the help of a command.

Spark is imported inside functions only, so that `dovetail --help` does not wait for it.
"""
