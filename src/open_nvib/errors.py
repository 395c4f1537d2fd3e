"""Mistakes in what the user gave, apart from mistakes in the program."""


class InputError(ValueError):
    """What the user gave cannot be used: a missing file, a wrong value, an output that would be overwritten.

    The message is one line and says what, where, what was got, what was wanted, and the fix. The command line prints
    it without a traceback and exits with 2.
    """
