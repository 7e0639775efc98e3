"""`python -m dse` is the `dse` command."""

from dse.cli import main

main()
