"""The options of training in one table, from which the rest is made: the flags of `broadsheet train` and their help,
the keywords of `train` and their documentation, and the request that its stages read.

It imports nothing that takes time to load: the command reads it for its help.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Unpack, cast

from ..errors import UsageError
from . import FILE, HEADER, NAMES, READ, ReadKeywords
from .table import Option, Table

_OF_SUSPECTS = ("file", "row", "truth", "truth_score", "label", "score", "decision", "text", "text_key")

SOURCE = Any
MODEL = str | Any | None
"""The types of options for input, as in `classify`, and for a model: a name, a file, or a loaded `Model`."""

PANELS = ("", "Options", "Input", "Network", "Recipe", "Computing", "Scores of other models", "Cluster", "Report")

# Only the command has flags for the other two panels.
_python, _options, _input, _network, _recipe, _computing, _teachers = (partial(Option, panel) for panel in PANELS[:7])


def share_of(top: str | None) -> Any:
    """Return the share that the option `top` names, as a `Fraction`; None if it is not given. Raises UsageError."""
    if top is None:
        return None
    from ..output.cut import share_of as share_in  # PyArrow takes time to load

    return share_in(top)


def _nothing(*_: object) -> None:
    """Do nothing. This is called when nobody wants messages about a run."""


# fmt: off
class TrainKeywords(ReadKeywords, total=False):
    """Options of `train`."""

    recipe: Annotated[Any, _python("A `Recipe`: epochs, learning rate, augmentation and so on.",
        more="Default: the recipe of the shipped model; with fewer than 5,000 rows, one with smaller batches, a lower "
        "rate and less noise.")]
    settings: Annotated[Iterable[str], _python('In place of `recipe`: settings of the default, such as "epochs=10".',
        ())]
    soft_labels: Annotated[Any, _python("`SoftLabels`: probabilities of the classes, by teachers or in columns, to "
        "learn beside or in place of labels.")]
    client: Annotated[Any, _python(
        "A client of a Dask cluster (`cluster.connect`) on whose workers to train, with a process on each.",
        more="They need PyTorch, and the folder of `checkpoint` has to be one that they share.")]
    checkpoint: Annotated[os.PathLike[str] | None, _python("File for the state of the run.",
        more="It is also written where the run is interrupted, and never overwrites that of another run.")]
    about: Annotated[Mapping[str, Any] | None, _python("JSON values to add to the card of the model.")]
    on_start: Annotated[Callable[..., None] | None, _python(
        "Called once with the training data, `LabelledArticles`, and the number of held-out rows.")]
    tell: Annotated[Callable[..., None] | None, _python("Called with what the run reports.",
        more="That is a `Fit` after each fit of n-grams, a `Cost` before the first step of the network, a `Step` after "
        "each, an `Epoch` at the end of each, and a `Note` where there is something else to say.")]
    suspects: Annotated[bool, _python("Look for rows whose label is probably wrong: `Trained.suspects`.", False,
        more="There is one label column then, one label a text, and no teacher.")]
    resume: Annotated[bool, _options("Continue from MODEL.checkpoint.", False,
        more="In Python, from `checkpoint`; on a CPU the result has the same bits as an undisturbed run.")]
    label_column: Annotated[NAMES, _input("Column with the class, needed without soft labels; if repeated, the model "
        "learns each.", (), "NAME", more="It then has a head for each, over the same n-grams and the same network. A "
        "row may lack some of these labels.")]
    target_column: Annotated[str | None, _input(
        "In place of --label-column: a column of numbers to learn, or with --classes of levels.", None, "NAME",
        more="These are the names of levels, from the lowest, which stand for 1, 2 and so on. n-grams learn them, "
        "without a network.")]
    text_column: Annotated[NAMES, _input("Column with the text; several are joined by a space.", (), "NAME", "text")]
    corrections: Annotated[FILE, _input("File of `review` with decisions, to learn in place of labels.",
        None, "FILE.csv", more="`broadsheet review` writes them. Each counts for all rows with its text; a text that "
        "no row has is added. There is one label column then, one label a text, and no teacher.")]
    id_column: Annotated[str | None, _input("Column that identifies a row in --suspects.", None, "NAME")]
    classes: Annotated[HEADER, _input("Class names in order; labels are then names or numbers.", None, "A,B,C",
        more="Default: the labels that occur, sorted.")]
    multi_label: Annotated[bool, _input("A text may have several labels: the label column holds lists.", False,
        more="Each class has a score of its own, and a threshold, at which F1 is best on the held-out rows.")]
    label_separator: Annotated[str | None, _input("The label column holds texts with this between two labels.",
        None, "TEXT", seldom=True)]
    hold_out_share: Annotated[float | None, _input("Share of each class to hold out from training.",
        None, "SHARE", "by the model", flag="hold-out", more="It is up to 0.5; rows with the same text are held out "
        "together, and the accuracy on them is computed after each epoch. Default: 0.05; where only n-grams are fitted "
        "none, since cross-validation gives their accuracy, or with `soft_labels` 0.2, with `fine_tune` 0.1.")]
    test: Annotated[SOURCE, _input("Rows on which to evaluate the finished model.", None, "DATA")]
    init: Annotated[MODEL, _network("Model from whose network to start, without its last layer.", None, "MODEL",
        more="A shipped model's name, a model file, or a loaded `Model`. These weights are learned at a lower rate, "
        "the recipe's `init_rate`.")]
    alphabet: Annotated[str | None, _network("published, or a UTF-8 file with the symbols.",
        None, "NAME|FILE", "with-space", seldom=True,
        more="In Python the symbols themselves. Default: those of `init`, or the published alphabet with a space.")]
    length: Annotated[int | None, _network("Characters read of an article.", None, "CHARACTERS", "1014", seldom=True,
        more="From 64 to 4,096. Default: as many as `init`, or 1,014.")]
    frame: Annotated[str | None, _network("Compute the text only, or the whole length.",
        None, "", "text", choices=("text", "dense"), seldom=True,
        more='"text": block 1\'s output is zero after the end of an article\'s text, so that only the text is '
        'computed. "dense": it is not, as in the published network. Default: that of `init`, or "text".')]
    ngrams: Annotated[int | None, _network("Buckets for n-grams, a power of two; 0: none.",
        None, "N", "by the classes", seldom=True,
        more="They are of words and characters. Default: about a million for few classes, fewer for many.")]
    vectors: Annotated[FILE, _network("Word vectors for the n-grams: wordllama, a file, an encoder's folder, several "
        "with commas, or none.",
        "auto", "WHAT", more="In Python None for none (docs/train_options.md lists the formats). How much they count "
        'is chosen by cross-validation, and may be nothing. Default: "auto", those of wordllama where that package is '
        "installed and there are at most 10,000 labelled rows.")]
    encoder: Annotated[FILE, _network(
        "Fit a linear head to the vectors of this encoder, in place of n-grams and network.", None, "WHAT",
        more="A folder, as transformers or sentence-transformers saves it, with or without a head; "
        "``hf://user/name``; or a model file that has one. Without `fine_tune` the encoder stays as it is.")]
    fine_tune: Annotated[bool, _network("With --encoder, also train its weights, with PyTorch.", False,
        more="Held-out rows choose the epoch, and Ctrl-C keeps the best so far. It takes much longer than a head, and "
        "says first how long. `settings` may be epochs, batch_size and learning_rate. Fewer than 2,000 rows also learn "
        "from all pairs of texts in a batch.")]
    keep_network: Annotated[bool, _network("Keep the network even where it does not help on held-out rows.",
        False, seldom=True)]
    keep_teacher: Annotated[bool, _teachers(
        "Make a chain: n-grams, and for texts of which they are unsure the --teacher, an encoder.", False,
        more="The labels are then those of the encoder for 99.9 % of new texts, with 95 % confidence, by the held-out "
        "rows; a model of numbers needs `top`.")]
    top: Annotated[str | None, _teachers("With --keep-teacher, fit the chain to find this share of texts, those with "
        "the highest scores, such as 10%.", None, "SHARE")]
    top_of: Annotated[str | None, _teachers("With --top, the class whose scores count.", None, "CLASS")]
    recall: Annotated[float, _teachers("Least share of the --top texts that the encoder must read.",
        0.95, "SHARE", seldom=True)]
    dtype: Annotated[str, _network("Number format of the stored weights.",
        "float16", choices=("float16", "float32"), seldom=True)]
    loss: Annotated[str, _recipe("The error of a --target-column that training minimises.",
        "squared", choices=("squared", "absolute"), seldom=True)]
    balanced: Annotated[bool, _recipe("Give every class the same weight.", False,
        more="Otherwise every row has the same weight.")]
    seed: Annotated[int, _recipe("Seed of every random choice.", 0, "N",
        more="The held-out rows do not depend on it.")]
    device: Annotated[str, _computing("Where to compute; auto: the GPU, if there is one that works.",
        "auto", choices=("auto", "cpu", "cuda"))]
    precision: Annotated[str, _computing("Number format of products; auto: bf16 on a GPU.",
        "auto", choices=("auto", "fp32", "bf16"), seldom=True)]
    checkpoint_every: Annotated[int, _computing("How often to write MODEL.checkpoint; 0: never.",
        10, "EPOCHS", least=0, seldom=True)]
    gpus: Annotated[int | None, _computing("GPUs that share each batch.", None, "N", "1; all of a cluster", least=1,
        more='Of this machine, a process each (with `device` "cpu": processes on its cores); with `client`, workers.')]

# fmt: on

TRAIN = Table(TrainKeywords, PANELS)


class TrainRequest(TRAIN.made("train")):  # type: ignore[misc]
    """The checked keyword arguments of `train`, which documents them.

    Raises UsageError for a value out of range, and for options that exclude each other.
    """

    if TYPE_CHECKING:

        def __init__(self, **options: Unpack[TrainKeywords]) -> None: ...

    def _check(self) -> None:
        # Bring the options into one form: functions, and tuples of names.
        for name in ("on_start", "tell"):
            self._set(name, getattr(self, name) or _nothing)
        for name in ("text_column", "label_column"):
            self._set(name, (getattr(self, name),) if isinstance(getattr(self, name), str) else getattr(self, name))
        for name in ("text_column", "label_column", "columns", "classes", "settings"):
            self._set(name, None if getattr(self, name) is None else tuple(getattr(self, name)))
        if self.join is not None:
            from ..source.rows.join import joined_columns  # PyArrow takes time to load

            columns, template = joined_columns(self.join, self.text_column)
            self._set("text_column", columns)
            self._set("join", template)
        # Check the label columns, and what they exclude.
        labels = ", ".join(self.label_column)
        others = {
            "numbers": self.target_column, "classes by name": self.classes, "several labels a text": self.multi_label,
            "teachers or soft labels": self.soft_labels,
        }  # fmt: skip
        others = {what: given for what, given in others.items() if given}
        if self.label_separator is not None and not self.multi_label:
            raise UsageError("a label separator is for several labels a text: --multi-label")
        if self.label_separator == "":
            raise UsageError("the label separator is empty")
        if len(self.label_column) > 1 and others:
            what = next(iter(others))
            raise UsageError(f"with several label columns ({labels}) there are no {what}: leave these out")
        if len({*self.label_column}) < len(self.label_column):
            raise UsageError(f"a label column is named twice: {labels}")
        if self.multi_label and (self.balanced or self.soft_labels is not None):
            raise UsageError(
                "with several labels a text there are no balanced classes, teachers or soft labels: leave them out"
            )
        # Check suspects and corrections, which need one label column and one label for each text.
        for is_given, what in ((self.suspects, "suspects"), (self.corrections is not None, "corrections")):
            if is_given and (len(self.label_column) != 1 or self.multi_label or self.soft_labels is not None):
                raise UsageError(
                    f"{what} are of labels in one column, of one label a text: name it and no others, and leave out "
                    "teachers and soft labels"
                )
        if self.id_column in _OF_SUSPECTS:
            raise UsageError(
                f"--id-column {self.id_column!r} is what the table of suspects calls a column itself: rename it"
            )
        # Check numbers to learn, which the network cannot learn.
        for_network = self.keep_network or self.device == "cuda" or self.needs_network
        if self.learns_numbers:
            both = self.target_column is not None and self.soft_labels is not None
            if (for_network and not self.fine_tune) or self.label_column or self.multi_label or both or self.balanced:
                raise UsageError(
                    "numbers, of a target column or a teacher, are learned by n-grams alone, on a CPU: leave out label "
                    "column, other soft labels, balanced classes, and what is for the network"
                )
            self._set("dtype", "float32")
        # Check the encoder, which excludes everything for n-grams and the network.
        if self.fine_tune and self.encoder is None:
            raise UsageError("--fine-tune is of an encoder: name it, with --encoder")
        if self.encoder is not None:
            excluded = {
                "several label columns": len(self.label_column) > 1, "word vectors": self.vectors not in ("auto", None),
                "n-grams": self.ngrams is not None, "a teacher to keep": self.keep_teacher,
                "a GPU": self.device == "cuda" and not self.fine_tune, "several GPUs": self.client or self.gpus,
                "a network": self._needs_more_than_settings or (self.settings and not self.fine_tune)
                or self.keep_network or self.alphabet or self.length or self.frame,
            }  # fmt: skip
            if found := [what for what, is_given in excluded.items() if is_given]:
                raise UsageError(f"with an encoder there are no options for {', '.join(found)}: leave them out")
            self._set("dtype", "float32")
        # Check the chain of n-grams and a teacher.
        if self.keep_teacher and (for_network or self.classes or self.soft_labels is None):
            raise UsageError(
                "--keep-teacher makes a chain of n-grams and a teacher, with its classes: name one, and leave out "
                "--classes, and what is for the network"
            )
        if not self.keep_teacher and (self.top is not None or self.top_of is not None):
            raise UsageError("--top is what a chain is to find: add --keep-teacher")
        # Check the rows to test on, the recipe, and what is held out.
        if self.test is not None and not (self.label_column or self.target_column):
            raise UsageError("the rows to test on need labels: name their column")
        if self.recipe is not None and self.settings:
            raise UsageError("give a recipe, or settings that differ from the default's")
        if self.resume and self.checkpoint is None:
            raise UsageError("resume needs the checkpoint to continue from")
        if self.hold_out_share is not None and not 0 <= self.hold_out_share <= 0.5:
            raise UsageError(f"{self.hold_out_share} of the rows cannot be held out: at most half of them")

    @property
    def learns_numbers(self) -> bool:
        """Whether a column or a teacher gives numbers to learn."""
        return self.target_column is not None or (self.soft_labels is not None and self.soft_labels.levels is not None)

    @property
    def reading(self) -> ReadKeywords:
        """The options for reading files."""
        return cast("ReadKeywords", {name: getattr(self, name) for name in READ})

    @property
    def needs_network(self) -> bool:
        """Whether an option is given that only a network has."""
        return self._needs_more_than_settings or bool(self.client or self.gpus or self.settings)

    @property
    def _needs_more_than_settings(self) -> bool:
        return self.init is not None or self.recipe is not None or self.ngrams == 0
