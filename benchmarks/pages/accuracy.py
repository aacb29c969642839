"""docs/accuracy.md: few labelled rows, beside scikit-learn."""

from __future__ import annotations

from collections import defaultdict
from statistics import mean
from typing import Any

from benchmarks.pages.markdown import machine, table

_PEERS = ("words", "words or characters")
_BALANCED = ("ours, balanced", "words or characters, balanced")
Runs = list[dict[str, Any]]


def page(result: dict[str, Any]) -> str:
    """The page, from the recorded runs."""
    trials = {trial: [run for run in result["runs"] if run["trial"] == trial] for trial in ("", "noise", "imbalance")}
    plain = _cases([run for run in trials[""] if {"ours", *_PEERS} <= run.keys()])
    of = machine(result["about"], "python", "numpy", "scikit-learn")
    return f"""# Accuracy with few rows

`benchmarks/accuracy.py` trains on some rows of public sets, as many as the first column says, and evaluates on test
rows of each set, in percent. *Ours* is what `broadsheet train` gives by default without a GPU: n-grams alone. *words*
is scikit-learn's TF-IDF of words and pairs with logistic regression, *words or characters* the best by cross-validation
of words, 3 to 5 characters, or both, with a linear SVM; each strength is chosen by cross-validation. Measured on
{of}.

## By the number of rows

The mean over the sets of the difference to each of the two, and to the better of the two on each set.

{_summary(plain)}

## By set

Where a set has 1,000 test rows, the standard error of one figure is 1 to 1.5 points, that of a difference somewhat
less; seeds draw other training rows, and share the test rows. What decides how a model is fitted was chosen on training
rows.

{_by_set(plain)}

## Wrong labels

10 % of the training rows have a wrong label, drawn at random.

{_by_set(_cases(trials["noise"]))}

## Rare classes

Of every other class a tenth of the training rows is kept; the test rows are as before. *balanced* is
`train --balanced`, and `class_weight="balanced"` with strength and features chosen by macro-F1. The first table has
macro-F1, the mean over the classes; the second accuracy.

{_imbalance(_cases(trials["imbalance"]), ", F1")}

{_imbalance(_cases(trials["imbalance"]), "")}

The sets are not part of the repository, and have terms of their own.
"""


def _cases(runs: Runs) -> dict[tuple[int, str], Runs]:
    cases: dict[tuple[int, str], Runs] = defaultdict(list)
    for run in runs:
        cases[run["rows"], run["set"]].append(run)
    return dict(sorted(cases.items()))


def _ahead(runs: Runs) -> float:
    """Of the better peer, by its mean over the seeds."""
    return mean(run["ours"] for run in runs) - max(mean(run[peer] for run in runs) for peer in _PEERS)


def _summary(cases: dict[tuple[int, str], Runs]) -> str:
    head = " | ".join(["rows", "sets", "runs", *(f"ours - {peer}" for peer in _PEERS), "ours - better", "at worst",
                       "sets below -0.5", "seconds of a core: ours", "of the second"])  # fmt: skip
    lines = []
    for rows in sorted({rows for rows, _ in cases}):
        of_sets = [runs for (count, _), runs in cases.items() if count == rows]
        every = [run for runs in of_sets for run in runs]
        ahead = [f"{mean(mean(r['ours'] - r[peer] for r in runs) for runs in of_sets):+.2f}" for peer in _PEERS]
        of_better = [_ahead(runs) for runs in of_sets]
        seconds = [f"{mean(run[f'{way}, s'] for run in every):.0f}" for way in ("ours", _PEERS[1])]
        below = str(sum(value < -0.5 for value in of_better))
        better = [f"{mean(of_better):+.2f}", f"{min(of_better):+.1f}", below]
        lines.append(" | ".join([f"{rows:,}", str(len(of_sets)), str(len(every)), *ahead, *better, *seconds]))
    return table(head, lines)


def _by_set(cases: dict[tuple[int, str], Runs]) -> str:
    head = " | ".join(["rows", "set", "classes", "seeds", "ours", *_PEERS, "ours - better"])
    lines = []
    for (rows, name), runs in cases.items():
        figures = [f"{mean(run[way] for run in runs):.1f}" for way in ("ours", *_PEERS)]
        what = [f"{rows:,}", name, str(runs[0]["classes"]), str(len(runs))]
        lines.append(" | ".join([*what, *figures, f"{_ahead(runs):+.1f}"]))
    return table(head, lines)


def _imbalance(cases: dict[tuple[int, str], Runs], kind: str) -> str:
    ways = ("ours", _PEERS[1], *_BALANCED)
    lines = []
    for (rows, name), runs in cases.items():
        figures = [f"{mean(run[way + kind] for run in runs):.1f}" for way in ways]
        lines.append(" | ".join([f"{rows:,}", name, str(runs[0]["classes"]), str(len(runs)), *figures]))
    return table(" | ".join(["rows", "set", "classes", "seeds", *ways]), lines)
