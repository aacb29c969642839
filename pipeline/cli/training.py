"""Shows a run of `broadsheet train`: with a progress bar on a terminal, in plain lines in a log."""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import counted
from ..evaluation.chain import promised
from ..evaluation.numbers import NumberFigures
from ..model.cascade import CARD
from ..report.console import PlainConsole
from ..report.phases import Phases
from ..report.shares import share_of_card, share_text
from ..report.tables import new_table
from ..train import Cost, Epoch, Fit, Note, Odd, Oddities, RowsDone, Step, Trained
from ..train.after import AGREEMENT_CARD, SURE_CARD
from ..train.data import LabelledArticles

_LONG = 600.0  # seconds; for a longer run, say how long a GPU would take


class TrainingProgress:
    """Prints the reports of a run: how long it takes, how far it is, and how good the model is.

    Parameters
    ----------
    console : PlainConsole
        The console to print on.
    epochs : int
        The number of epochs; 0 if the run itself reports it.
    learns : str
        The part that is trained: "network" or "encoder".

    """

    def __init__(self, console: PlainConsole, epochs: int, learns: str = "network") -> None:
        self._console, self._epochs, self._learns = console, epochs, learns
        self._began = self._last = time.monotonic()
        self._phases = Phases(console)
        self._held_out = self._measured = "held out"  # what the figures of the model, and of an epoch, are measured on

    def start(self, data: LabelledArticles, held_out: int) -> None:
        """Print on how many texts and classes the model is trained."""
        self._held_out = "held out" if held_out else "cross-validated"
        has_labels = data.taught is None or not data.taught.all()
        self._measured = "held out" if has_labels else "agreement"
        held = f", {held_out:,} of them held out" if held_out else ""
        skipped = f"; {counted(data.skipped, 'unreadable row')} skipped" if data.skipped else ""
        what = "classes" if data.levels is None else f"levels, {data.classes[0]} to {data.classes[-1]}"
        of_columns = ", ".join(f"{name} ({count} classes)" for name, count in data.heads or ())
        of_what = of_columns or f"{len(data.classes)} {what}"
        self._console.print(f"{len(data):,} texts of {of_what}{held}{skipped}", soft_wrap=True)

    def __call__(self, what: Cost | RowsDone | Fit | Step | Epoch | Note | Oddities) -> None:
        """Print one report of `train`."""
        kinds = {
            Cost: self._cost, Fit: self._fit, Step: self._step, Note: self._note, Epoch: self._epoch,
            Oddities: self._oddities, RowsDone: self._rows,
        }  # fmt: skip
        kinds[type(what)](what)  # type: ignore[operator]

    def stop(self) -> None:
        """Remove the progress bar."""
        self._phases.stop()

    def finish(self, trained: Trained, output: Path) -> None:
        """Print how good the model is, and to which file it was written."""
        # Figures on held-out rows, which depend on the kind of model.
        card = trained.model.card
        if "held_out_accuracy" in card:
            self._console.print(f"{self._held_out}: {share_of_card(card, 'held_out_accuracy')} right", soft_wrap=True)
        if AGREEMENT_CARD in card:
            agreement = f"{share_of_card(card, AGREEMENT_CARD)} agreement with the teacher"
            self._console.print(f"{self._held_out}: {agreement}", soft_wrap=True)
        for name, compared in (trained.compared_columns or {}).items():
            right = f"{share_of_card(card['heads'][name], 'held_out_accuracy')} right"
            self._console.print(f"{self._held_out}: {name} {right}", soft_wrap=True)
            for line in compared.lines():
                self._console.print(f"  {line}", soft_wrap=True)
        if "held_out" in card:
            against = f", against {card['held_out']['against']}" if "against" in card["held_out"] else ""
            self._console.print(f"{self._held_out}{against}: {_numbers(card['held_out'])}", soft_wrap=True)
            for name, figures in card["compared with"].items():
                self._console.print(f"  {name}: {_numbers(figures)}", soft_wrap=True)
        if "held_out_micro_f1" in card:
            self._console.print(f"{self._held_out}, the rows that decided the thresholds: {_f1(card, 'held_out_')}")

        # Comparisons with a teacher and with other models, and how many labels are sure.
        if "teacher_accuracy" in (taught := card.get("soft_labels", {})):
            self._console.print(f"  its teacher: {taught['teacher_accuracy']:.2%} right, of those with a label")
        for line in trained.compared.lines() if trained.compared else ():
            self._console.print(line, soft_wrap=True)
        if sure := card.get(SURE_CARD):
            few = "; with so few rows, scores are rough" if sure["rows"] < 300 else ""
            what = "are right" if "right" in sure else "agree with the teacher"
            share = share_text(sure.get("right", sure.get("agree")), sure["rows"])
            self._console.print(f"of {sure['rows']:,} rows with a {SURE_CARD}, {share} {what}{few}", soft_wrap=True)

        # Figures on the rows of `--test`.
        for name, figures in card.get("heads", {}).items():
            if test := figures.get("test"):
                rows_right = f"of {test['rows']:,} rows right"
                self._console.print(f"test: {name} {share_of_card(test, 'accuracy')} {rows_right}", soft_wrap=True)
        if "promise" in (about_chain := card.get(CARD, {})):
            self._console.print(promised(about_chain), soft_wrap=True)
        if "test" in card and "heads" not in card:
            test = card["test"]
            if "accuracy" in test:
                self._console.print(
                    f"test: {share_of_card(test, 'accuracy')} of {test['rows']:,} rows right", soft_wrap=True
                )
            else:
                figures = _numbers(test) if "spearman" in test else _f1(test, "")
                self._console.print(f"test: {figures}, of {test['rows']:,} rows", soft_wrap=True)
        self._console.print(f"{output} written after {time.monotonic() - self._began:,.0f} s", soft_wrap=True)

    def _cost(self, cost: Cost) -> None:
        whole = cost.seconds * cost.epochs
        self._epochs = self._epochs or cost.epochs
        self._console.print(f"on {cost.device}: {cost.rows:,} articles an epoch", soft_wrap=True)
        self._console.print(f"  an epoch takes about {about(cost.seconds)}, {cost.epochs} epochs {about(whole)}")
        if cost.seconds_on_gpu is not None and whole > _LONG:
            self._console.print(f"  one NVIDIA H200 does it in {about(cost.seconds_on_gpu * cost.epochs)}")
        self._last = time.monotonic()

    def _oddities(self, odd: Oddities) -> None:
        if odd.found:
            print_oddities(odd.found, self._console)

    def _note(self, note: Note) -> None:
        self._console.print(note.text, soft_wrap=True)

    def _rows(self, rows: RowsDone) -> None:
        self._phases(rows.phase, rows.done, rows.most)

    def _fit(self, fit: Fit) -> None:
        self._phases(fit.what, fit.done, fit.most, "fits at most")

    def _step(self, step: Step) -> None:
        steps_done, all_steps = (step.epoch - 1) * step.steps + step.done, self._epochs * step.steps
        loss = "" if step.loss is None else f", loss {step.loss:.3f}"
        self._phases(self._learns, steps_done, all_steps, "steps", f"epoch {step.epoch:>3}/{self._epochs}{loss}")

    def _epoch(self, epoch: Epoch) -> None:
        now = time.monotonic()
        held_out = "" if epoch.accuracy != epoch.accuracy else f"  {self._measured} {epoch.accuracy:7.2%}"
        self._console.print(
            f"epoch {epoch.number:>3}/{self._epochs}  loss {epoch.loss:.4f}{held_out}  {now - self._last:.1f} s"
        )
        self._last = now
        self._phases.spoke()


def print_oddities(found: Sequence[Odd], console: PlainConsole) -> None:
    """Print a table of what is odd in labelled rows, and an example for `--map-labels` if it would help."""
    if not found:
        console.print("nothing odd in the rows")
        return
    table = new_table("what is odd", "rows", "which", "what helps")
    for column in table.columns[2:]:
        column.justify = "left"
    for odd in found:
        table.add_row(odd.what, f"{odd.rows:,}", odd.which, odd.remedy)
    console.print(table)
    lines = [odd.map_line for odd in found if odd.map_line is not None]
    if lines:
        example = io.StringIO()
        csv.writer(example, lineterminator="\n").writerows([("label", "class"), *lines])
        console.print("for --map-labels, a CSV file such as this one (rows of a label without a class are left out):")
        for line in example.getvalue().splitlines():
            console.print(f"  {line}", soft_wrap=True)


def _numbers(figures: Mapping[str, Any]) -> str:
    _, *given = (math.nan if figures[name] is None else figures[name] for name in NumberFigures._fields)
    return str(NumberFigures(figures["rows"], *given))


def _f1(figures: Mapping[str, Any], prefix: str) -> str:
    shown = (figures[f"{prefix}{kind}_f1"] for kind in ("micro", "macro"))
    micro, macro = ("–" if value is None else f"{value:.3f}" for value in shown)
    return f"micro F1 {micro}, macro F1 {macro}"


def about(seconds: float) -> str:
    """Return a duration as text, to about two digits.

    >>> about(0.3), about(75), about(20_000)
    ('0.3 s', '1.2 min', '5.6 h')
    """
    for limit, size, unit in ((60.0, 1.0, "s"), (3600.0, 60.0, "min"), (172_800.0, 3600.0, "h")):
        if seconds < limit:
            return f"{seconds / size:.1f} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.1f} days"
