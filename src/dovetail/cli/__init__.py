"""The command `dovetail`.

`app` the command itself and its errors · one file for each subcommand: `demo`, `run`, `explain`,
`top`, `checkup` (which shows what `doctor` finds) · `jobfile` and `jobs` a job file, checked and
then planned · `watch` and `views` what a running join looks like · `session` how Spark is started.

Spark is imported inside functions only, so that `dovetail --help` does not wait for it.
"""
