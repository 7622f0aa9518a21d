"""`python -m dovetail.cli` is the command `dovetail`."""

from dovetail.cli.app import main

main()
