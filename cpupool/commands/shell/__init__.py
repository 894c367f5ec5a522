"""The parts that commands share: options, files, exit codes, the node that they look at."""
