"""The version, in one place: packaging, the command line and the wire all read it here."""

VERSION = "0.1.0"
