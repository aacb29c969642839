"""The options of a job in one table, from which the rest is made: flags and their help, Python's keywords and their
documentation, the names of options in messages, and the record of a job.

It imports nothing that takes time to load: the command reads it for its help.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, TypedDict, Unpack

from ..errors import FLAGS, UsageError, install
from ..output.layout import PART_FORMAT_NAMES
from ..source.rows.limits import CHUNK_ROWS, MOST_CHUNK_ROWS
from .table import Option, Table

if TYPE_CHECKING:
    from ..labelling.windows import Windows
    from ..model.several import Models
    from ..output.model_columns import ModelColumns
    from ..output.record import Settings
    from ..source.rows.chunk import Selection
    from ..source.rows.labels import LabelRules

_CHUNKS = "{cpu} to {:,} on a CPU (encoders: fewer), {cuda:,} or {:,} on a GPU".format(
    *MOST_CHUNK_ROWS.values(), **CHUNK_ROWS
)
_INPUT_FORMATS = ("csv", "tsv", "jsonl", "parquet", "arrow", "text", "wet", "xlsx")
_FORMAT, _FORMATS = "parquet; jsonl to stdout", (*PART_FORMAT_NAMES, "npy")

NAMES = str | Iterable[str]
HEADER = Iterable[str] | None
FILE = str | os.PathLike[str] | None
"""The types of options for columns, for the columns of a file without a header, and for a file."""

PANELS = ("Input", "Labels", "Output", "Computing", "Cluster", "Job", "Report")
"""The panels of the command's help, in this order."""

# An entry has a type, a help text, the way to give it, and the rest of the documentation. The layout is by hand: ruff
# would need three times as many lines.
_input, _labels, _output, _computing, _cluster, _job, _report = (partial(Option, panel) for panel in PANELS)


# fmt: off
class EngineKeywords(TypedDict, total=False):
    """Options of whatever computes labels."""

    device: Annotated[str, _computing("Where to compute; auto: the GPU, if there is one that works.",
        "auto", "auto|cpu|cuda", more='Otherwise, and with "cpu", it is the CPU; with "cuda" it must be a GPU.')]
    precision: Annotated[str, _computing("Number format to compute in; a CPU has fp32, and int8, which is slower there "
        "and needs a model with int8 scales.", "auto", "auto|fp32|fp16|bf16|int8")]
    kernels: Annotated[str, _computing("Generation of CUDA kernels to use.",
        "auto", "auto|simt|sm75|sm80|sm90", seldom=True,
        more='They are "simt", "sm75", "sm80" and "sm90"; "auto" chooses.')]
    network: Annotated[str, _computing("Texts about which a model with n-grams asks its network.",
        "uncertain", choices=("uncertain", "all", "none"), recorded=True, more='"uncertain": those on whose label its '
        'n-grams are not sure, by the margin of `calibrate`. "none": n-grams alone.')]


class TruthKeywords(TypedDict, total=False):
    """Options of whatever reads labels."""

    label_numbers_from: Annotated[int | None, _input("Take numbers in the label column as class numbers that begin at "
        "0, or at 1.", None, "0|1", least=0, recorded=True, seldom=True, more="Default: names only, unless all labels "
        "are numbers that can count the classes in one way only; which one is reported.")]
    fold_labels: Annotated[bool, _input("Take labels that differ only by case, spaces or Unicode form as one class.",
        False, recorded=True, seldom=True)]
    map_labels: Annotated[FILE, _input("CSV file that renames labels: a line label,class, then lines such as "
        "Sprots,Sports.", None, "FILE.csv", recorded=True, more="Rows with the label Sprots then have the class "
        "Sports. Rows whose label has an empty class there are left out. What no row has is reported.")]


class TextKeywords(TypedDict, total=False):
    """How the text of a row is made of its columns, beside their names."""

    join: Annotated[str | None, _input("In place of --text-column: a template of the text, such as "
        "'{url}\\n\\n{text}'.", None, "TEMPLATE", recorded=True, more="It names columns in braces; numbers and dates "
        "may be among them, and a null is written as nothing. ``{{`` and ``}}`` are braces, ``\\n`` and "
        "``\\t`` a line end and a tab, ``\\\\`` a backslash. Default: that of the model, if it was trained with one.")]


class LabelKeywords(EngineKeywords, TruthKeywords, TextKeywords, total=False):
    """Options of what adds labels to rows that are at hand."""

    preparation: Annotated[FILE, _computing("How to prepare a text before the model reads it: a recipe's name, or a "
        "JSON file of steps.", None, "RECIPE", recorded=True, seldom=True, more="`broadsheet recipes` prints the "
        "recipes. A model file that was converted with `--preparation` has its own.")]
    text_column: Annotated[NAMES, _input("Column with the text; several are joined by a space.",
        (), "NAME", "text", recorded=True, more="The result is stripped.")]
    label_column: Annotated[str | None, _input("Column with the true class, by name or number.",
        None, "NAME", recorded=True, was="truth_column",
        more="The report then has the accuracy, and the output the true class by name, in a column ``truth``.")]
    scores: Annotated[bool, _labels("Write the probability of every class.", False, recorded=True,
        more="The columns are ``score_<class>``.")]
    top_k: Annotated[int, _labels("Write the K best labels and scores.", 1, "K", least=1, recorded=True,
        more="The columns are ``top_labels`` and ``top_scores``; where it is 1, there are none.")]
    abstain: Annotated[float | None, _labels("Give rows with a lower score no label.", None, "BELOW", recorded=True,
        more="Their ``label`` is null, other columns are as without this option. The report counts them.")]
    windows: Annotated[int | str | None, _labels("Label a long text in N windows, or in its first, last, first+last or "
        "spread windows.", None, "N|PART[:SIZE]", recorded=True, more="N windows follow one another from the beginning "
        'on; "spread" are beginning, middle and end. Each is as long as the model reads, or has as many characters as '
        '``"first+last:10000"`` says, or tokens of fastText\'s, as ``"last:512t"`` does. The output then has their '
        "number, ``n_windows``. Default: only the beginning of a text is read.")]
    overlap: Annotated[int, _labels("Characters that two neighbouring windows share.",
        0, "CHARS", least=0, recorded=True, seldom=True)]
    window_score: Annotated[str, _labels("How to make the scores of a text from those of its windows.",
        "mean", choices=("mean", "best", "worst"), recorded=True, seldom=True, more='"mean": a text has the mean of '
        'them. "best", "worst": it has those of the window with the highest or the lowest.')]
    chunk_size: Annotated[int | None, _computing("Rows that are read, labelled and committed together, at most.",
        None, "ROWS", _CHUNKS, least=1, recorded=True, seldom=True)]
    workers: Annotated[int | None, _cluster("Processes on this machine; with slurm, at most N nodes.",
        None, "N", least=1,
        more="They are the cluster that is started where no client is given. A script that sets this needs the ``if "
        '__name__ == "__main__":`` guard of multiprocessing. Default: one worker within this process.')]
    strict: Annotated[bool, _job("Stop at the first bad row.", False,
        more="That is one that cannot be read; a file with a problem stops it, too.")]
    allow_mixed: Annotated[bool, _cluster("Let workers with different processors or GPUs label together.",
        False, seldom=True,
        more="They may differ in anything that decides the bits of a score, for example in GPU architecture.")]


class ReadKeywords(TruthKeywords, TextKeywords, total=False):
    """Options of whatever reads files."""

    columns: Annotated[HEADER, _input("Column names of a headerless CSV or TSV.", None, "A,B,C", recorded=True)]
    input_format: Annotated[str | None, _input("Format of all input files, whatever they are called.",
        shown="by suffix", choices=_INPUT_FORMATS, recorded=True)]
    encoding: Annotated[str, _input("Encoding of CSV, TSV, JSONL and text files: latin-1, cp1252, utf-16, …",
        "utf-8", "NAME", recorded=True, more="It may be any name that Python knows.")]
    delimiter: Annotated[str | None, _input("Character between the fields of a CSV.", None, "C", ",", recorded=True,
        more="Default: a comma, a tab in TSV files.")]
    quote: Annotated[str | None, _input("Character around a field of a CSV that holds delimiters or line ends; none: "
        "quotes are text.", None, "C|none", '"', recorded=True, seldom=True)]
    escape: Annotated[str | None, _input("Character of a CSV before a quote, delimiter or line end that is text: often "
        "a backslash.", None, "C", "none", recorded=True, seldom=True)]
    endpoint: Annotated[str | None, _input("Server for s3://, gs:// and az:// URLs.", None, "URL", "the provider's",
        more="Default: that of the environment, for example "
        "``AWS_ENDPOINT_URL``.")]


class ScoreKeywords(EngineKeywords, ReadKeywords, total=False):
    """Options of what scores rows that are read here."""


class OptionKeywords(LabelKeywords, ReadKeywords, total=False):
    """Options of a job."""

    root: Annotated[FILE, _input("Write paths of input files relative to this folder.",
        None, "FOLDER", "absolute paths",
        more="It is a folder, or the beginning of a URL, above all input files; the paths are in the column ``file``.")]
    shard: Annotated[str | None, _input("Label only share I (from 1) of N of the files, for N jobs without a "
        "cluster, which ``merge`` joins.", None, "I/N", recorded=True, seldom=True)]
    limit: Annotated[int | None, _input("Label the first N rows only.", None, "N", least=1, recorded=True)]
    truth: Annotated[FILE, _input("True classes of a one-hot .bin input.", None, "FILE", recorded=True, seldom=True,
        more="The file holds float32 class indices from 0, one for each article.")]
    hash: Annotated[str, _input("Recognise input files by size and time, or also by a hash of their content.",
        "listing", choices=("listing", "full"), recorded=True, seldom=True, more='"listing": by path, size and time of '
        'modification, or an ETag. "full": also by a hash of the content, for which all of it is read beforehand.')]
    id_column: Annotated[NAMES, _output("Column that identifies a row, to copy to the output.",
        (), "NAME", recorded=True, more="There may be several; they come first.")]
    keep: Annotated[NAMES, _output("Another column to copy to the output.", (), "NAME", recorded=True,
        more="There may be several.")]
    keep_all: Annotated[bool, _output("Copy every column to the output.", False, recorded=True)]
    format: Annotated[str, _output("Format of the output.", "parquet", "", _FORMAT, choices=_FORMATS, recorded=True,
        more='"parquet", "jsonl" or "csv"; "npy" with `layout`. Default: "parquet".')]
    layout: Annotated[str, _output("Write parts, or a file beside each input file, row for row.",
        "parts", choices=("parts", "attributes"), recorded=True, seldom=True,
        more='"attributes": below `root` as the input; "jsonl" are Dolma\'s attributes, "npy" an array of all scores.')]
    partition_by: Annotated[NAMES, _output("Write a folder for each label, or each value of a kept column.",
        (), "NAME", recorded=True, more='"label", the name of a column that is copied, or several. Folders are named '
        "as Hive names them, ``label=Sports``. With several models, the labels are those of the first.")]
    part_rows: Annotated[int | None, _output("Join small parts once all is labelled, so that each has about N rows.",
        None, "N", least=1, more="With `partition_by`, each part in its folder. This is what `compact` does, also to "
        "parts that are there before an update.")]
    where: Annotated[str | None, _output("Write only rows for which this is true: 'score >= 0.9'.",
        None, "EXPRESSION", recorded=True, more="Those for which the expression over the columns of the output is "
        'true, also where they are returned and not written; for example ``label == "Sports" and score >= 0.9``.')]
    resume: Annotated[bool, _job("Continue an interrupted job, or repair a finished one.", False)]
    overwrite: Annotated[bool, _job("Replace an earlier job's output, and other files that this one writes.", False)]
    update: Annotated[bool, _job("Label only the files that are new since the last run, and add them to OUT/.", False,
        more="The job's other options must be the same. Files that have changed or are gone are reported, and keep "
        "their labels. An update that was interrupted is continued. Where there is no job yet, it is begun.")]
    changed: Annotated[bool, _job(
        "With --update, label again the files that have changed, and remove the labels of those that are gone.", False,
        more="Small files are read together: those that are read with such a file are labelled again too. The result "
        "is that of a new job over the files as they are.")]
    max_quarantined: Annotated[str | int, _job("Exit with code 3 if more rows than this cannot be read.", "50%", "N|N%",
        more='A number of rows, or a share of all such as "10%". The job is finished all the same: '
        "``report.exit_code`` says it.")]
    max_unread: Annotated[str | int, _job("Exit with code 3 if more files than this cannot be read, or only in part.",
        "0", "N|N%", more='A number of files, or a share of the job\'s such as "1%". The job is finished all the same, '
        "and its report names them.")]
    profile: Annotated[bool, _report("Record every kernel, and measure each alone.", False, seldom=True,
        more="Each has a span, and is measured by itself at the end.")]
    trace: Annotated[FILE, _report("Write the timeline, for ui.perfetto.dev, as JSON.", None, "FILE.json", seldom=True)]
    report: Annotated[FILE, _report("Write a report as one HTML page.", None, "FILE.html",
        more="That needs Matplotlib. Only with `overwrite`, `resume` or `update` is a page, or a timeline, replaced.")]

# fmt: on

TABLE, READ, SCORE = (Table(keywords, PANELS) for keywords in (OptionKeywords, ReadKeywords, ScoreKeywords))
ENGINE = Table(EngineKeywords, ("Computing", "Limits", "Security", "Cluster", "Log"))
TYPES, takes = TABLE.types, TABLE.takes

FLAGS.update({name.replace("_", "-"): option.default is False for name, option in TABLE.items()})


class Options(TABLE.made("Options")):  # type: ignore[misc]
    """The checked keyword arguments of `classify`, which documents them: how a job reads, computes and writes.

    Raises
    ------
    UsageError
        For a value out of range, a column named twice, or a file that cannot be written.

    Examples
    --------
    >>> broadsheet.Options(text_column=["title", "body"], top_k=3).text_column
    ('title', 'body')

    """

    if TYPE_CHECKING:

        def __init__(self, **options: Unpack[OptionKeywords]) -> None: ...

    def _check(self) -> None:
        """Raise UsageError for an invalid value. Convert columns, encoding and delimiter to the form that is used."""
        from ..output.account import most_allowed
        from ..output.sidecars import refuse_unfit
        from ..output.where import Where
        from ..source.formats.record_format import dialect_of
        from ..source.plan.files import refuse_unfit_share
        from ..source.rows.columns import distinct
        from ..source.rows.compression import encoding_named
        from ..source.rows.join import joined_columns
        from ..storage.buckets import check_endpoint
        from ..storage.names import refuse_not_utf8, root_of

        # Bring column names into one form, and refuse values that cannot be recorded as UTF-8.
        self._set("partition_by", self.partition_by or ())
        for name, option in TABLE.items():
            value = getattr(self, name)
            if value is None and option.default is None:
                continue
            if TYPES[name] in (NAMES, HEADER):
                self._set(name, distinct(name, value))
            elif name == "label_column":
                distinct(name, value)
            if option.recorded or name == "root":
                refuse_not_utf8(name, getattr(self, name))
        if self.join is not None:
            columns, template = joined_columns(self.join, self.text_column)
            self._set("text_column", columns)
            self._set("join", template)
        # Check options that need another option.
        if self.changed and not self.update:
            raise UsageError("--changed goes with --update")
        if self.windows is None and (self.overlap or self.window_score != TABLE["window_score"].default):
            raise UsageError("--overlap and --window-score go with --windows")
        if self._windows is not None and str(self.windows).isdecimal():
            self._set("windows", int(str(self.windows)))
        # Replace the encoding and the dialect of CSV by what the readers use.
        self._set("encoding", encoding_named(self.encoding))
        for name, value in dialect_of(delimiter=self.delimiter, quote=self.quote, escape=self.escape).items():
            self._set(name, value)
        # Check single values.
        root_of(self.root)
        if self.label_numbers_from not in (None, 0, 1):
            raise UsageError(f"--label-numbers-from is {self.label_numbers_from}: class numbers begin at 0 or at 1")
        if self.endpoint is not None:
            check_endpoint(self.endpoint)
        if self.report is not None and find_spec("matplotlib") is None:
            raise UsageError(f"--report needs Matplotlib: {install('report')}")
        if self.abstain is not None and not 0 < self.abstain <= 1:
            raise UsageError(f"abstain is {self.abstain!r}, it must be a score above 0, up to 1")
        if self.where is not None:
            Where(self.where)
        # Check options against each other.
        refuse_unfit(self, self._kept_columns)
        refuse_unfit_share(self.shard, self.update, self.limit)
        self._refuse_unfit_parts()
        most_allowed("max_quarantined", self.max_quarantined, 0, "rows")
        most_allowed("max_unread", self.max_unread, 0, "files")

    def _refuse_unfit_parts(self) -> None:
        if self.part_rows is None:
            return
        if self.shard is not None:
            raise UsageError("--part-rows does not go with --shard: give it to `broadsheet merge`")
        if self.limit is not None:
            raise UsageError("--part-rows does not go with --limit: give a larger --chunk-size")
        if self.layout != "parts":
            raise UsageError("--part-rows is for parts, and --layout attributes writes none")

    def replaced(self, **options: Unpack[OptionKeywords]) -> Options:
        """Return a copy with these options replaced."""
        return Options(**{**vars(self), **options})

    @property
    def _kept_columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.id_column, *self.keep)))

    @property
    def label_rules(self) -> LabelRules:
        """The rules by which labels name classes."""
        from ..source.rows.label_map import read_label_map
        from ..source.rows.labels import LabelRules

        classes_of = {} if self.map_labels is None else read_label_map(self.map_labels)
        return LabelRules(self.label_numbers_from, self.fold_labels, classes_of)

    def selection(self, models: Models) -> Selection:
        from ..source.rows.chunk import Selection

        preparations = {own.id: own for model in models.loaded if (own := model.preparation)}
        text, join = self._texts_for(models)
        return Selection(
            text=text,
            join=join,
            kept_columns=self._kept_columns,
            truth=self.label_column,
            header=self.columns,
            classes=models.classes,
            answers=None if self.truth is None else os.path.abspath(self.truth),
            keep_all=self.keep_all,
            encoding=self.encoding,
            delimiter=self.delimiter,
            quote=self.quote,
            escape=self.escape,
            reads=models.reads if self._windows is None else self._windows.reads_of(models),
            prefixes=models.prefixes,
            windows=self.windows is not None,
            preparations=tuple((name, own.of) for name, own in preparations.items()),
            byte_steps=tuple((name, *own.byte_steps) for name, own in preparations.items() if own.byte_steps),
            only_prepared=self._windows is None and all(model.preparation for model in models.loaded),
            rules=self.label_rules,
        )

    def _texts_for(self, models: Models) -> tuple[tuple[str, ...], str]:
        """Return the columns of text and the template that joins them.

        If the user names neither, use the models' own.
        """
        from ..source.rows.join import joined_columns

        if self.join is None and not self.text_column and models.join:
            return joined_columns(models.join)
        return self.text_column, self.join or ""

    @property
    def _windows(self) -> Windows | None:
        from ..labelling.windows import Windows

        return None if self.windows is None else Windows.of(self.windows, self.overlap, self.window_score)

    def cost_of_row(self, models: Models) -> float:
        """Estimate how long a row takes on a CPU, as in `Models`. A long text is labelled in several windows.

        Parameters
        ----------
        models : Models
            The models that label the row.

        """
        return models.cost * (1 if self._windows is None else self._windows.most_windows)

    def model_columns(self, models: Models) -> tuple[ModelColumns, ...]:
        """Return what each model is to compute for each row."""
        from ..output.model_columns import columns_of_models, refuse_unfit

        judged = self.label_column is not None or self.truth is not None
        refuse_unfit(models, judged, self.partition_by, self.abstain, self.format)
        return columns_of_models(models, self.top_k, self.scores, self.abstain, self._windows)

    def settings(self, chunk_rows: int, models: Models) -> Settings:
        """Return the part of the options that the record of a job holds: those that change a byte of the output."""
        from msgspec import UNSET

        from ..output.record import Settings
        from ..source.open.opening import digest_of
        from ..source.rows.label_map import digest_of_label_map

        # Record the options; some of them are recorded in another form.
        several = tuple(model.is_multi_label for model in models.every)
        recorded = {name: getattr(self, name) for name in Settings.__struct_fields__ if name in TABLE}
        given = None if self.preparation is None else os.fspath(self.preparation)
        text, join = self._texts_for(models)
        recorded |= {
            "text_columns": text,
            "join": join or None,
            "truth_column": self.label_column,
            "kept_columns": self._kept_columns,
            "partition_by": self.partition_by if len(self.partition_by) > 1 else next(iter(self.partition_by), None),
            "truth": None if self.truth is None else digest_of(self.truth),
            "map_labels": None if self.map_labels is None else digest_of_label_map(self.map_labels),
            "preparation": os.path.abspath(given) if given and os.path.isfile(given) else given,
            "chunk_size": chunk_rows,
            "windows": UNSET if self.windows is None else (self.windows, self.overlap, self.window_score),
            "models": models.short_names if len(models.every) > 1 else UNSET,
            "multi_label": several if any(several) else UNSET,
        }
        # Leave out options of later versions at their default, so that records of earlier versions stay the same.
        later = (
            "abstain",
            "network",
            "preparation",
            "layout",
            "shard",
            "quote",
            "escape",
            "input_format",
            "label_numbers_from",
            "fold_labels",
            "map_labels",
            "join",
        )
        unset = (name for name in later if recorded[name] == TABLE[name].default)
        return Settings(**recorded | dict.fromkeys(unset, UNSET))
