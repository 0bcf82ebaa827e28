"""The `oblivionis` command, one file per group of commands."""
