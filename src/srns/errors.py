"""What the package raises when the input, not the program, is at fault.

The command line prints these messages without a stack trace and exits with code 2; every other exception is a bug.
"""

from __future__ import annotations


class SrnsError(Exception):
    """Base of all errors a user can cause and mend; the message says what was found and what is expected."""


class DataError(SrnsError):
    """A file, frame or array of interactions is not what it should be."""


class ConfigError(SrnsError):
    """A hyper-parameter, option or name is unknown or out of range."""


class ArtifactError(SrnsError):
    """A run or model on disk is missing, damaged or of another format version."""


class TrainingError(SrnsError):
    """Training broke down, for instance into numbers that are not finite."""


class UnknownIdError(SrnsError, KeyError):
    """A user or item that the model has never seen was asked for."""

    def __str__(self) -> str:  # KeyError would print the repr of the message
        return str(self.args[0])
