"""`python -m oblivionis`: the `oblivionis` command."""

from oblivionis.cli.main import main

if __name__ == "__main__":
    main()
