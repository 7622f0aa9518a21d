"""The command `dovetail`.

`app` the command itself · `failures` what it says about errors · one file for each subcommand:
`run`, `explain`, `top`, `checkup` (which shows what `doctor` finds), and for `demo` a folder ·
`jobfile` (with `sections`) and `jobs` a job file, checked and then planned · `places` where its
results and state are · `watch` and `views` what a running join looks like · `session` how Spark is
started · `stopping` what Ctrl-C and SIGTERM do.

Spark is imported inside functions only, so that `dovetail --help` does not wait for it.
"""
