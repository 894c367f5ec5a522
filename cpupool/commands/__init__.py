"""The subcommands: each takes parsed arguments and returns an exit code."""
