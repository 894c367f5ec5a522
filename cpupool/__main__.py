"""`python -m cpupool` is the `cpupool` command."""

from cpupool import cli

if __name__ == "__main__":
    cli.run()
