"""The mistake that all commands can be used with."""


class Misused(Exception):
    """The command was used wrongly; the text says how."""
