"""Everything that commands draw: machines, tables, colours, progress, plots."""
