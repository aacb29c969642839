"""The command `evaluate`, which compares the labels of a model with the true classes of texts."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from ..errors import UsageError, counted, install
from ..options import SCORE
from ..report.console import PlainConsole, facts_table, print_fact, print_json, say
from ..storage.disk import refuse_outputs
from .flags import Json, OneModel, Texts, in_panel, keywords, with_options

if TYPE_CHECKING:
    from ..evaluation.evaluate import Evaluation, LabelEvaluation
    from ..evaluation.numbers import NumberEvaluation
    from ..model.cascade import ScoreSelection
    from ..model.charcnn import Model
    from ..options import ReadKeywords

_INDENT = 6
_SHOWN = 145  # characters of a mistake's text: two lines
_LABEL = "Column with the true class.  [default: as in training]"
_SEPARATOR = "Text between two labels of a row that has several."
_RELIABILITY = "Draw the reliability diagram in this file, not in the terminal."
_ASKED = "For a model that is a chain: draw the recall over the share of texts that its encoder reads."
_TARGET = "Find the lowest score at and above which this share of the labels is right."
_ABSTAIN = "Give rows with a lower score no label, as `classify` does."
_report = partial(in_panel, "Report")


@with_options(SCORE)
def command(
    model: OneModel,
    data: Annotated[list[str], typer.Argument(metavar="DATA", help="Labelled texts: files, folders, globs or URLs.")],
    label_column: Annotated[str | None, in_panel("Input", "NAME", _LABEL)] = None,
    text_column: Texts = None,
    label_separator: Annotated[str | None, in_panel("Input", "TEXT", _SEPARATOR)] = None,
    mistakes: Annotated[int, _report("N", "Number of mistakes to show, the most confident first.", min=0)] = 10,
    as_json: Json = False,
    plot: Annotated[Path | None, _report("FILE.png", "Draw the confusion matrix.")] = None,
    reliability: Annotated[Path | None, _report("FILE.png", _RELIABILITY)] = None,
    asked: Annotated[Path | None, _report("FILE.png", _ASKED)] = None,
    precision_target: Annotated[float | None, _report("SHARE", _TARGET)] = None,
    overwrite: Annotated[bool, _report("", "Replace the pictures.", "--overwrite")] = False,
    abstain: Annotated[float | None, _report("BELOW", _ABSTAIN)] = None,
    **flags: Any,
) -> None:
    """Measure how good a model is on labelled texts.

    The command prints the accuracy, figures by class, the confusion matrix (or for more than 10 classes the most
    frequent mistakes), the calibration error and the most confident mistakes.
    """
    # Refuse pictures that cannot be drawn, or that would replace a file.
    pictures = {"--plot": plot, "--reliability": reliability, "--asked": asked}
    for flag, picture in pictures.items():
        if picture and find_spec("matplotlib") is None:
            raise UsageError(f"{flag} needs Matplotlib: {install('report')}")
    from ..evaluation.evaluate import evaluate
    from ..model.loading import load_model
    from ..report.phases import Phases
    from ..source.inputs import Paths, local_paths

    refuse_outputs(pictures, overwrite, lambda: [model, *local_paths(Paths(data))])

    # Load the model, and find the columns of text and label.
    loaded = load_model(model)
    options = chosen_columns(loaded, text_column, label_column, keywords(flags, SCORE))
    label = options["label_column"]
    options["progress"] = Phases(PlainConsole(stderr=True))
    network = options.pop("network", SCORE["network"].default)
    selection = (chain.selection or None) if (chain := loaded.asking(network).cascade) else None
    if asked and selection is None:
        what = "a chain that is to find a share of the texts, with --network uncertain"
        raise UsageError(f"{model}: --asked is for {what}")

    # Evaluate a model of several labels, or of numbers, in its own way.
    if loaded.is_multi_label:
        loaded = loaded.asking(network)
        if plot or reliability or abstain is not None or precision_target is not None:
            raise UsageError(
                f"{model} gives a text several labels: --plot, --reliability, --abstain and --precision-target are for "
                "models that give one"
            )
        _evaluate_labels(loaded, data, as_json, {**options, "label_separator": label_separator})
        return
    if loaded.levels is not None:
        if plot or reliability or label_separator or abstain is not None or precision_target is not None:
            raise UsageError(
                f"{model} gives a text a number: --plot, --reliability, --label-separator, --abstain and "
                "--precision-target are for models that give labels"
            )
        _draw_recalls(_evaluate_numbers(loaded.asking(network), data, as_json, options), selection, asked)
        return

    # Evaluate a model that gives each text one label.
    if label_separator is not None:
        raise UsageError(f"{model} gives each text one label: --label-separator is for models that give several")
    options |= {"network": network, "mistakes": mistakes, "abstain": abstain, "precision_target": precision_target}
    result = evaluate(loaded, Paths(data), **options)
    if not result.confusion.rows and not result.abstained:
        from ..report.summary import unknown_labels_line

        message = f"no row has a class of the model in column {label!r}"
        why = unknown_labels_line(result.unknown_labels, loaded.classes)
        raise UsageError(message if why is None else f"{message}: {why}")

    # Print the figures and draw the pictures.
    if (console := _begun(result, as_json)) is not None:
        _print(result, abstain, reliability is None, console, loaded)
    _draw_recalls(result, selection, asked)
    if plot or reliability:
        from ..report.plots import confusion_matrix, reliability_diagram, save_png
    if plot:
        save_png(confusion_matrix(result.confusion), plot)
    if reliability:
        save_png(reliability_diagram(result.reliability, result.uncalibrated), reliability)


def chosen_columns(
    model: Model, text_column: list[str] | None, label_column: str | None, options: dict[str, Any]
) -> dict[str, Any]:
    """Return the options with the columns of text and label: those that the user names, or else those of the training.

    Prints the columns if they are those of the training. Raises UsageError if neither user nor model names the column
    of labels.
    """
    from ..evaluation.rows import joined_as, label_column_of, learned_columns, text_columns

    read = joined_as(model, text_column or (), cast("ReadKeywords", options))
    texts, label = text_columns(model, text_column or (), read), label_column_of(model, label_column)
    if not (text_column and label_column) and (model.join or any(learned_columns(model))):
        say(f"columns: text {read.get('join') or ', '.join(texts or ['text'])}; label {label}", error=True)
    return {**read, "text_column": texts, "label_column": label}


def _evaluate_labels(model: Model, data: list[str], as_json: bool, options: dict[str, Any]) -> None:
    from ..evaluation.evaluate import evaluate_labels
    from ..report.tables import print_label_figures, ratio_text
    from ..source.inputs import Paths

    result = evaluate_labels(model, Paths(data), **options)
    if (console := _begun(result, as_json)) is None:
        return
    _print_left_out(result, console)
    if result.unknown:
        console.print(f"{counted(result.unknown, 'row')} with a label that is no class of the model", style="yellow")
    _print_labels(result, model, console)
    of_others = None if result.others is None else f"micro F1 {ratio_text(result.others.micro_f1)}"
    _print_overlap(result, of_others, console)
    print_label_figures(result.counts, console)


def _evaluate_numbers(model: Model, data: list[str], as_json: bool, options: dict[str, Any]) -> NumberEvaluation:
    from ..evaluation.numbers import evaluate_numbers
    from ..report.tables import print_asking
    from ..source.inputs import Paths

    result = evaluate_numbers(model, Paths(data), **options)
    if not result.figures.rows:
        raise UsageError(f"no row has a number in column {options['label_column']!r}")
    if (console := _begun(result, as_json)) is None:
        return result
    left = f"; {counted(result.quarantined, 'row')} skipped: unreadable" if result.quarantined else ""
    console.print(f"{counted(result.figures.rows, 'row')}{left}; {result.without:,} without a true number")
    _print_overlap(result, None if result.others is None else str(result.others), console)
    console.print(f"{result.figures}; nearest level right for {result.nearest:.1%}", soft_wrap=True)
    if result.found:
        print_asking({name: figures._asdict() for name, figures in result.found.items()}, console, model.second)
    return result


def _draw_recalls(result: Evaluation | NumberEvaluation, selection: ScoreSelection | None, file: Path | None) -> None:
    """Draw the recall over the share of texts about which a chain asks its encoder.

    Does nothing without a file or a chain. Raises UsageError if no row has a score that makes it one of the texts to be
    found.
    """
    if file is None or selection is None:
        return
    if not result.recalls:
        raise UsageError(f"no row has a score from {selection.cut:g} on: there is no recall to draw")
    from ..report.plots import recall_by_share, save_png

    save_png(recall_by_share(result.recalls, result.found["uncertain"][:2], selection.recall), file)


def _begun(result: Evaluation | LabelEvaluation | NumberEvaluation, as_json: bool) -> PlainConsole | None:
    """Print which model was evaluated, and return the console for the rest. With `as_json`, print everything as JSON
    and return None.
    """
    if as_json:
        print_json(result.to_dict())
        return None
    console = PlainConsole()
    print_fact("model", result.model, console)
    console.print(facts_table([("on", result.backend)]))
    return console


def _print_labels(result: Evaluation | LabelEvaluation, model: Model, console: PlainConsole) -> None:
    """Print a line if the label column numbers the classes, and one for labels that name no class."""
    from ..report.summary import unknown_labels_line
    from ..source.rows.label_map import unmatched_line
    from ..source.rows.labels import class_numbers_line

    if result.label_numbers_from is not None:
        console.print(class_numbers_line(result.label_numbers_from, model.classes))
    if unknown := unknown_labels_line(result.unknown_labels, model.classes):
        console.print(unknown, style="yellow")
    if unmatched := unmatched_line(result.unmatched_labels):
        console.print(unmatched, style="yellow")


def _print_overlap(
    result: Evaluation | LabelEvaluation | NumberEvaluation, others: str | None, console: PlainConsole
) -> None:
    """Print from how many of the rows the model has learned. others: how good it is on the other rows."""
    from ..report.overlap import overlap_line

    if line := overlap_line(result.overlap, others):
        console.print(line, style="yellow", soft_wrap=True)


def _print_left_out(result: Evaluation | LabelEvaluation, console: PlainConsole) -> None:
    if result.quarantined:
        console.print(f"{counted(result.quarantined, 'row')} skipped: unreadable", style="yellow")
    if result.overflowed:
        console.print(f"{counted(result.overflowed, 'row')} skipped: the model overflows on them", style="yellow")


def _print(result: Evaluation, abstain: float | None, diagram: bool, console: PlainConsole, model: Model) -> None:
    """Print the evaluation of a model that gives one label. With `diagram`, also print the reliability diagram."""
    from rich.padding import Padding

    from ..report.tables import print_asking, print_confusion, print_reliability, print_thresholds

    # Say which rows do not count.
    _print_left_out(result, console)
    if abstain is not None:
        rows = result.abstained + result.confusion.rows
        share = f"{result.abstained:,} of {rows:,} rows ({result.abstained / rows:.1%})"
        console.print(f"{share} have a score below {abstain:g}, and no label; the figures are those of the others")
    _print_labels(result, model, console)
    _print_overlap(result, None, console)

    # Print figures of all rows together.
    print_confusion(result.confusion, console)
    print_reliability(result.reliability, result.uncalibrated, diagram, console, model.is_calibrated)
    if result.networks:
        found = {name: figures._asdict() for name, figures in result.found.items()}
        figures = {name: figures._asdict() | found.get(name, {}) for name, figures in result.networks.items()}
        print_asking(figures, console, model.second)
    if result.thresholds:
        print_thresholds(result.thresholds, console)

    # Show the texts of the most confident mistakes.
    if result.mistakes:
        console.print("most confident mistakes", style="bold")
    for mistake in result.mistakes:
        console.print(f"{mistake.score:.3f} {mistake.label}, not {mistake.truth}", overflow="fold")
        where = f"{' ' * _INDENT}{mistake.file} row {mistake.row}"
        console.print(where, style="dim", soft_wrap=True)  # on one line, so that the user can copy it
        text = console.render_str(" ".join(mistake.text.split())[:_SHOWN])
        console.print(Padding(text, (0, 0, 0, _INDENT)), style="dim", overflow="fold")
