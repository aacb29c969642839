"""The errors a user can meet, each with the exit code that the command ends with."""

from __future__ import annotations


class BroadsheetError(Exception):
    """Anything the user should be told in one message, without a traceback."""

    exit_code = 1


class UsageError(BroadsheetError):
    """The job as asked for cannot be: a wrong option, column, model or folder."""

    exit_code = 2


class ModelError(UsageError):
    """A model file that is damaged, incomplete or of another shape than its metadata says."""


class SourceError(BroadsheetError):
    """Input that cannot be read."""

    exit_code = 3


class OutputError(BroadsheetError):
    """The output folder cannot take what is written, or does not hold what it should."""
