"""This machine: sysfs, cgroups, files and processes, under an injectable root."""
