"""The command `dse`: a file for each group of commands."""
