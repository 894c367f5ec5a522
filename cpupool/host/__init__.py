"""This machine: sysfs, cgroups, processes, files and records, under an injectable root."""
