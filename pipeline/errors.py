"""The errors that a user can meet, with their exit codes; how messages are shown; and earlier names of keywords."""

from __future__ import annotations

import re
import shlex
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache, wraps
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])

_DISTRIBUTION = "broadsheet"

FLAGS = {
    **dict.fromkeys(("balanced", "fine-tune", "input", "keep-network", "keep-teacher", "multi-label", "tls"), True),
    **dict.fromkeys(
        ("classes", "encoder", "held-out", "label-separator", "learning-rate", "map-labels", "model"), False
    ),
    **dict.fromkeys(("nsys", "protocol", "scheduler-file"), False),
    **dict.fromkeys(("top", "top-of", "recall", "count", "score", "by", "per"), False),
}
"""The flags that are keywords in Python, and whether each is a switch: without a value in the command, True in Python.

The table of a job's options, which is loaded with the package, adds its own flags.
"""

_VALUES = (
    "fp32|fp16|bf16|int8|simt|sm75|sm80|sm90|cpu|cuda|tcp|ucx|listing|full|attributes|parquet|jsonl|csv|npy|"
    "[0-9]+(?:\\.[0-9]+)?"
)
_ENDS = r"(?![\w/-]|\.\w)"
_FLAG = re.compile(rf"(?<![^\s(`'\"])--([a-z]+(?:-[a-z]+)*){_ENDS}")
_NAMED = r"(?<=--encoding )[\w-]+|(?<=--delimiter )tab|(?<=--quote )none"
_WITH_VALUE = re.compile(rf"{_FLAG.pattern} ({_VALUES}|'[^']+'|{_NAMED}){_ENDS}")
_CLUSTER = re.compile(rf"(?<![^\s(`'\"])--cluster (\w+){_ENDS}")


def in_python(message: str) -> str:
    """Return the message with each flag in Python's form; paths and other programs' flags stay as they are.

    >>> in_python("continue with --resume, or use --precision fp32 and a smaller --chunk-size")
    'continue with resume=True, or use precision="fp32" and a smaller chunk_size='
    """
    message = _CLUSTER.sub(r'cluster.connect("\1")', message)
    return _FLAG.sub(_keyword, _WITH_VALUE.sub(_keyword, message))


def _keyword(flag: re.Match[str]) -> str:
    if flag[1] not in FLAGS:
        return flag[0]
    value = flag[2] if flag.re is _WITH_VALUE else "True" if FLAGS[flag[1]] else ""
    quoted = f'"{value}"' if flag.re is _WITH_VALUE and value[0] not in "'0123456789" else value
    quoted = quoted.replace("\\", "\\\\")
    return f"{flag[1].replace('-', '_')}={quoted}"


def counted(number: int, what: str) -> str:
    """Return a number with its noun: "1 row", "2,000 rows"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def install(extra: str) -> str:
    """Return the command that installs the packages of an extra, from whatever source this package was installed.

    The command names the packages. If it named the extra, pip would look for this package in an index, where it may be
    missing or belong to somebody else.
    """
    packages = _packages_of(extra)
    return f"pip install {' '.join(map(shlex.quote, packages))}" if packages else f"install the extra {extra!r}"


@cache
def _packages_of(extra: str) -> tuple[str, ...]:
    """Return what an extra requires here, with what its own extras require; empty if no distribution is installed."""
    from importlib.metadata import PackageNotFoundError, requires

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    try:
        required = [Requirement(one) for one in requires(_DISTRIBUTION) or ()]
    except PackageNotFoundError:
        return ()
    found: dict[str, None] = {}
    for one in required:
        if one.marker is None or one.marker.evaluate({"extra": ""}) or not one.marker.evaluate({"extra": extra}):
            continue
        if canonicalize_name(one.name) == _DISTRIBUTION:
            found |= dict.fromkeys(name for other in sorted(one.extras) for name in _packages_of(other))
        else:
            of_extras = f"[{','.join(sorted(one.extras))}]" if one.extras else ""
            found[f"{one.name}{of_extras}{one.specifier}"] = None
    return tuple(found)


def renamed(**names: str) -> Callable[[_Function], _Function]:
    """Let a function accept the earlier names of keywords, with a warning. names: the new names by the old ones."""

    def show(function: _Function) -> _Function:
        @wraps(function)
        def called(*given: Any, **options: Any) -> Any:
            for name in options.keys() & names.keys():
                warnings.warn(f"{name}= is called {names[name]}= now", FutureWarning, stacklevel=2)
                options[names[name]] = options.pop(name)
            return function(*given, **options)

        return cast("_Function", called)

    return show


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: a suggestion, if one of the names is similar.

    >>> did_you_mean("Txet", ["id", "text"]), did_you_mean("body", ["id", "text"])
    ("; did you mean 'text'?", '')
    """
    from difflib import get_close_matches

    known = {one.casefold(): one for one in names}
    close = get_close_matches(name.casefold(), known, 1)
    return f"; did you mean {known[close[0]]!r}?" if close else ""


def first_of(names: Sequence[str], limit: int = 3, comma: str = ", ") -> str:
    """Return the first names, and how many more there are.

    >>> first_of(["a.csv", "b.csv", "c.csv", "d.csv"])
    'a.csv, b.csv, c.csv, and 1 more'
    """
    more = f"{comma}and {len(names) - limit:,} more" if len(names) > limit else ""
    return comma.join(names[:limit]) + more


def cause(error: Exception) -> str:
    """Return the message of an error of the system or of a library, or its type if it has none.

    >>> cause(FileNotFoundError(2, "No such file or directory", "a.csv")), cause(OSError("lost")), cause(OSError())
    ('No such file or directory', 'lost', 'OSError')
    """
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


_JOINERS = "\u200c\u200d"  # these occur within words of some scripts and within emoji


def printable(text: str) -> str:
    """Return the text on one line, with an escape for everything that a terminal or a browser would obey.

    Control characters, line breaks, lone surrogates (the bytes of a file name that is not UTF-8) and the marks that
    change the direction of writing become escapes as in Python's `repr`; letters, signs and spaces of all scripts stay.
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def printable_lines(text: str) -> str:
    """Return a message of several lines, each `printable`.

    Later lines are indented, so that none looks like a message.
    """
    return "\n  ".join(printable(line) for line in text.rstrip("\n").split("\n"))


def _shown(character: str) -> str:
    if character.isprintable() or character in _JOINERS or unicodedata.category(character) == "Zs":
        return character
    return repr(character)[1:-1]


class BroadsheetError(Exception):
    """The base of all errors that are reported to the user in one message, without a traceback.

    `str` of an error names options in Python's form, ``chunk_size=``.

    Attributes
    ----------
    message : str
        The message in the form of the command, which prints it: ``--chunk-size``.
    exit_code : int
        The exit code of the command: 1 unless a subclass has another.

    Examples
    --------
    >>> try:
    ...     broadsheet.classify("news.csv", "labels", chunk_size=0)
    ... except broadsheet.BroadsheetError as error:
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
    """A model does not exist, or its file is damaged, incomplete or unlike its metadata. Exit code 2."""


class SourceError(BroadsheetError):
    """The input cannot be read. Exit code 3."""

    exit_code = 3


class InputChanged(SourceError):
    """An input file has changed since the job was planned. Exit code 3."""


class InputUnavailable(BroadsheetError):
    """The input cannot be read now, but may be later: its server is out of reach, or credentials have expired.

    Exit code 1: the job ends, and can be resumed.
    """


class OutputUnavailable(BroadsheetError):
    """The output cannot be read or written now, but may be later: its server is out of reach, or refuses the request.

    Exit code 1: the job ends, and can be resumed.
    """


class OutputError(BroadsheetError):
    """The output folder cannot be written, or its files are missing, damaged or do not add up. Exit code 1."""
