"""docs/accuracy.md: few labelled rows, beside scikit-learn."""

from __future__ import annotations

from collections import defaultdict
from statistics import mean
from typing import Any

from benchmarks.pages.markdown import machine, table

_PEERS = ("words", "words or characters")


def page(result: dict[str, Any]) -> str:
    """The page, from the recorded runs."""
    by_case: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for run in result["runs"]:
        by_case[run["rows"], run["set"]].append(run)
    rows = []
    for (count, name), runs in sorted(by_case.items()):
        ours, *peers = (mean(run[way] for run in runs) for way in ("ours", *_PEERS))
        what = [f"{count:,}", name, str(runs[0]["classes"]), str(len(runs))]
        figures = [f"{value:.1f}" for value in (ours, *peers)]
        rows.append(" | ".join([*what, *figures, f"{ours - max(peers):+.1f}"]))
    ahead = [mean(run["ours"] - run[peer] for run in result["runs"]) for peer in _PEERS]
    seconds = mean(run["ours, s"] for run in result["runs"])
    least = min(mean(run["ours"] - max(run[peer] for peer in _PEERS) for run in runs) for runs in by_case.values())
    head = " | ".join(["rows", "set", "classes", "seeds", "ours", *_PEERS, "ours - better"])
    of = machine(result["about"], "python", "numpy", "scikit-learn")
    return f"""# Accuracy with few rows

`benchmarks/accuracy.py` trains on some rows of public sets, as many as the first column says, and evaluates on test
rows of each set, in percent. *Ours* is what `broadsheet train` gives by default without a GPU: n-grams alone. *words*
is scikit-learn's TF-IDF of words and pairs with logistic regression, *words or characters* the best by cross-validation
of words, 3 to 5 characters, or both, with a linear SVM; each strength is chosen by cross-validation. Measured on
{of}.

{table(head, rows)}

Over all runs, ours is {ahead[0]:+.2f} points ahead of *words* and {ahead[1]:+.2f} ahead of *words or characters*; at
worst {least:+.1f} from the better of the two. It takes {seconds:.0f} s of processor time on average. Where a set has
1,000 test rows, the standard error of one figure is 1 to 1.5 points, that of a difference somewhat less. The sets are
not part of the repository, and have terms of their own.
"""
