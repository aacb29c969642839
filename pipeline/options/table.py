"""Builds the help of flags, the documentation of keywords, and the checks of values from a table of options.

It imports nothing that takes time to load: the command reads it for its help.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from functools import wraps
from typing import Any, TypeVar, cast, get_type_hints

from ..errors import UsageError, did_you_mean, renamed

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Option:
    """The properties of an option, apart from its name and its type.

    Attributes
    ----------
    panel : str
        The panel of the command's help; "" for an option that only Python has.
    help : str
        The text in the command's help, with which the documentation begins.
    default : Any
        The value if the option is not given.
    metavar, shown : str
        The placeholder of the value, and the default, in the help. A switch has no metavar.
    choices : tuple of str
        The words that the option accepts.
    least : int, optional
        The smallest value of an integer.
    recorded : bool
        Whether the option changes a byte of the output, so that the record of a job holds it.
    flag : str
        The flag of the command, if it differs from the name.
    was : str
        The name in earlier versions, which is accepted with a warning.
    seldom : bool
        Whether only the full help shows the option.
    more : str
        The rest of the documentation, after `help`.

    """

    panel: str
    help: str
    default: Any = None
    metavar: str = ""
    shown: str = ""
    choices: tuple[str, ...] = ()
    least: int | None = None
    recorded: bool = False
    flag: str = ""
    was: str = ""
    seldom: bool = False
    more: str = ""

    @property
    def line(self) -> str:
        """The line of the option in the command's help, which ends with the default."""
        default = self.shown or ("" if self.default in (None, False, ()) else str(self.default))
        return self.help + (f"  [default: {default}]" if default else "")

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for a number that is too small, or a word that is not among the choices."""
        if value is None and self.default is None:
            return
        if self.least is not None and not (isinstance(value, int) and value >= self.least):
            raise UsageError(f"{name} is {value!r}, it must be an integer of at least {self.least}")
        if self.choices and value not in self.choices:
            raise UsageError(f"{name} {value!r}: choose {', '.join(self.choices)}")


class Table(dict[str, Option]):
    """The options of a function by name, as the class of its keywords declares them, in the order of the panels.

    Attributes
    ----------
    panels : tuple of str
        The panels of the command's help.
    types : dict of str to type
        The type of each option.

    """

    def __init__(self, keywords: type, panels: tuple[str, ...]) -> None:
        hints = get_type_hints(keywords, include_extras=True)
        options = {name: hint.__metadata__[0] for name, hint in hints.items()}
        super().__init__(sorted(options.items(), key=lambda entry: panels.index(entry[1].panel)))
        self.panels = panels
        self.types: dict[str, Any] = {name: hints[name].__origin__ for name in self}

    def numpydoc(self, name: str) -> str:
        """Return an option in the form of a docstring."""
        option, kind = self[name], inspect.formatannotation(self.types[name])
        shown = "" if "Default: " in option.more or not option.shown else f"Default: {option.shown}."
        said = " ".join(filter(None, (option.help, option.more, shown)))
        kind = re.sub(r"(typing|collections\.abc)\.", "", kind.replace(" | None", ", optional").replace(" | ", " or "))
        return "\n    ".join([f"{name} : {kind}", *textwrap.wrap(said, 116)])

    def made(self, name: str) -> Any:
        """Return a frozen class with the values of all options, and with their defaults.

        When an instance is made, each value is checked. Then its `_check` is called, which may replace values with
        `_set`.
        """

        def check(values: Any) -> None:
            for name, option in self.items():
                option.check(name, getattr(values, name))
            values._check()

        fields = [(name, kind, self[name].default) for name, kind in self.types.items()]
        methods = {"__post_init__": check, "_set": object.__setattr__}
        return make_dataclass(name, fields, namespace=methods, frozen=True, kw_only=True)

    def takes(self, keywords: type) -> Callable[[_Function], _Function]:
        """Return a decorator that shows each option by its name in the signature and docstring of a function.

        The function ends in `**options: Unpack[keywords]`. `help`, IPython and the documentation use what is shown;
        editors and type checkers follow `keywords` themselves.
        """

        def show(function: _Function) -> _Function:
            signature = inspect.signature(function)
            parameters = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
            names = [name for name in self if name in keywords.__annotations__]
            for name in names:
                about = {"default": self[name].default, "annotation": self.types[name]}
                parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, **about))
            every = [one.name for one in parameters]
            earlier = {self[name].was: name for name in names if self[name].was}

            @wraps(function)
            def checked(*given: Any, **options: Any) -> Any:
                for name in options.keys() - {*every}:
                    raise TypeError(f"{function.__name__}() has no argument {name!r}{did_you_mean(name, every)}")
                return function(*given, **options)

            checked.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
            about_all = "\n".join(map(self.numpydoc, names))
            text = re.sub(r"\*\*options\n(    .*\n)+", lambda _: f"{about_all}\n", inspect.getdoc(function) or "")
            checked.__doc__ = text
            return renamed(**earlier)(cast("_Function", checked))

        return show
