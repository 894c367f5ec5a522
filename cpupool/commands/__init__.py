"""The command line: a module or a folder per command, with `add_parser` and `run`.

`shell/` has the parts that commands share, `checks/` the findings of `doctor`, and `pictures/`
everything that commands draw.
"""
