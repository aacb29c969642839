"""The errors a user can meet, each with the exit code of the command."""

from __future__ import annotations

from pipeline.wording import in_python


class BroadsheetError(Exception):
    """Base of all errors that are reported to the user in one message, without a traceback.

    `str` of an error names options as Python does, ``chunk_size=``.

    Attributes
    ----------
    message : str
        The message as it was written and as the command prints it, ``--chunk-size``.
    exit_code : int
        Exit code of the command: 1 unless a subclass has another.

    Examples
    --------
    >>> try:
    ...     pipeline.classify("news.csv", "labels", chunk_size=0)
    ... except pipeline.BroadsheetError as error:
    ...     print(error.exit_code)
    2

    """

    exit_code = 1

    @property
    def message(self) -> str:
        return super().__str__()

    def __str__(self) -> str:
        return in_python(self.message)


class NoRoom(BroadsheetError):
    """A GPU, or the host's page-locked memory, has no room for a model. Exit code 1."""


class UsageError(BroadsheetError):
    """The job cannot run as requested: a wrong option, column, model or folder. Exit code 2."""

    exit_code = 2


class ModelError(UsageError):
    """A model that does not exist, or whose file is damaged, incomplete or unlike its metadata. Exit code 2."""


class SourceError(BroadsheetError):
    """Input that cannot be read. Exit code 3."""

    exit_code = 3


class InputChanged(SourceError):
    """An input file that is no longer the one that the job was planned for. Exit code 3."""


class InputUnavailable(BroadsheetError):
    """Input that cannot be read now, and may be later: its server is not reached, or credentials have expired. Exit
    code 1: the job ends, and can be resumed.
    """


class OutputUnavailable(BroadsheetError):
    """Output that cannot be read or written now, and may be later: its server is not reached, or refuses it. Exit code
    1: the job ends, and can be resumed.
    """


class OutputError(BroadsheetError):
    """An output folder that cannot be written, or whose files are missing, damaged or do not add up. Exit code 1."""
