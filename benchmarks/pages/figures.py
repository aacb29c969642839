"""Functions for figures and tables of the pages that results do not have in the form in which pages show them."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from math import floor, log10
from statistics import mean, median
from typing import Any, NamedTuple

__all__ = ["mean", "median"]

Result = Any
"""A recorded result, or a part of one."""

_NAMES = {"python": "Python", "numpy": "NumPy", "cuda": "CUDA", "nvrtc": "NVRTC", "cupy": "CuPy", "torch": "PyTorch",
          "dask": "Dask"}  # fmt: skip


def machine(about: Result, *names: str) -> str:
    """Return GPUs, processor, versions of the named packages, commit and date, as far as the record has them.

    Older records have a single "gpu", and no "versions" of their own but a field for each package.
    """
    known, gpus = about | about.get("versions", {}), [about.gpu] if "gpu" in about else about.get("gpus", [])
    said = [f"{gpus.count(name)} x {name}" if gpus.count(name) > 1 else name for name in dict.fromkeys(gpus)]
    said += [about.processor.replace("(R)", "").removesuffix(" Processor")] if "processor" in about else []
    said += [f"{about.cores} core{'s' if about.cores > 1 else ''}"] if "cores" in about else []
    said += [f"{_NAMES.get(name, name)} {known[name]}" for name in names if name in known]
    said += [f"commit {about.commit}"] if about.get("commit") else []
    return ", ".join([*said, about.date]) + (f"; {about.note}" if about.get("note") else "")


def listed(parts: Iterable[str], between: str = ", ") -> str:
    """Join texts."""
    return between.join(parts)


def one_cell(text: str) -> str:
    """Return a text, such as the message of an error, without characters that would end a cell of a table."""
    return " ".join(text.replace("|", "/").split())


# README.md


def with_500_rows(peers: Result, way: str) -> str:
    """Return the accuracy on AG News, in percent, of a way that was trained on 500 rows."""
    return mean_of([run for run in peers.runs if (run["set"], run.rows) == ("ag_news", 500) and way in run], way)


def fine_tuned_on(fine_tuning: Result, rows: int) -> list[Result]:
    """Return the runs on AG News in which `train --fine-tune` was trained on this many rows."""
    return [run for run in fine_tuning.runs if (run["set"], run.rows, run.way) == ("ag_news", rows, "tuned")]


def asking(network: Result, about: str) -> str:
    """Return the million articles of AG News per second in fp16, with `--network about`."""
    rate = next(row.articles_per_second for row in network.rows if row.network == about)
    return f"{rate / 1e6:.1f} million"


LONG = "1,100 characters"
"""The name, in network.json, of the texts that fill the frame."""


def row_of(network: Result, about: str, text: str = "AG News") -> Result:
    """Return the measurement with `--network about`."""
    return next(row for row in network.rows if (row.network, row.text) == (about, text))


def per_second(network: Result, about: str, text: str = "AG News") -> str:
    """Return the texts per second with `--network about`, to two digits."""
    rate = row_of(network, about, text).articles_per_second
    return f"{round(rate, 1 - floor(log10(rate))):,.0f}"


# accuracy.md, the shipped model


def interval(measured: Result) -> str:
    """Return the 95 % confidence interval of an accuracy, in percent."""
    low, high = measured.accuracy_interval
    return f"{100 * low:.1f} to {100 * high:.1f} %"


# train_options.md


def asked_about(shipped: Result) -> list[Result]:
    """Return the rows of the table of how good the shipped model is, by the share of rows that its network scores.

    These are no rows, some shares, the share by the margin, and all rows.
    """
    networks = shipped.networks
    kind = type(networks)
    rows = [kind(each, asked=each.share, error=f"{each.calibration_error:.3f}") for each in networks.values()]
    rows += [kind(share, asked=share.share, error="") for share in shipped.shares]
    names = {networks.none.share: "none", networks["all"].share: "all"}
    names[networks.uncertain.share] = f"**{networks.uncertain.share:.1%}: by the margin**"
    rows.sort(key=lambda row: float(row.share))
    return [kind(row, asked=names.get(row.share, f"{row.share:.0%}")) for row in rows]


# performance.md


def rate_of_ours(gpu: Result, peer: Result) -> float:
    """Return our articles per second, end to end, in the frame and precision of a peer."""
    precision = next((name for name in ("fp32", "int8") if name in peer.kind), "fp16")
    wanted = (peer.get("frame", "dense"), precision, "these")
    (row_of_ours,) = [row for row in gpu.both_frames if (row.frame, row.precision, row.texts) == wanted]
    return float(row_of_ours.end_to_end_articles_per_second)


# performance.md, the ladder


def steps(ladder: Result, kind: str) -> list[Result]:
    """Return the steps of one kind: "product", "cumulative" or "alone"."""
    return [step for step in ladder.steps if step.kind == kind]


def rate(step: Result) -> str:
    """Return the articles per second, or why there is no figure."""
    if "articles_per_second" in step:
        return f"**{step.articles_per_second:,.0f}**"
    return one_cell(f"skipped: {step.skipped}" if "skipped" in step else f"failed: {step.error}")


def predicted(step: Result) -> str:
    """Return the predicted articles per second, or the predicted factor."""
    if "articles_per_second" not in step:
        return ""
    factor = step.get("predicted_factor")
    return f"{step.predicted_articles_per_second:,.0f}" if factor is None else f"{factor:g} ×"


def gained(ladder: Result, step: Result) -> str:
    """Return the gain over the rung before, or "" for a rung that cannot be compared with it."""
    rungs = steps(ladder, "cumulative")
    before = rungs[max(0, rungs.index(step) - 1)]
    is_comparable = step.name.startswith("+") and "articles_per_second" in step and "articles_per_second" in before
    return f"{step.articles_per_second / before.articles_per_second:.2f}" if is_comparable else ""


def lost(ladder: Result, step: Result) -> str:
    """Return how many times slower than the product a step is."""
    (product,) = steps(ladder, "product")
    compared = step.get("of_articles_per_second", product.get("articles_per_second"))
    return f"{compared / step.articles_per_second:.2f} ×" if compared and "articles_per_second" in step else ""


# performance.md, reading, training and whole jobs


def by_library(decompression: Result) -> list[list[Result]]:
    """Return for each library its rows, with short texts and with long ones."""
    rows = defaultdict(list)
    for row in decompression.libraries:
        rows[row.compression, row.library].append(row)
    return list(rows.values())


KINDS_OF_STEPS = {"plain": "all rows", "packed": "rows of the text", "graphs": "rows of the text, CUDA graphs"}


def one_gpu(training: Result, run: Result) -> Result:
    """Return the run with the same batch on one GPU."""
    return next(one for one in training.epochs if one.gpus == 1 and one.batch == run.batch)


# accuracy.md

WITH_ENCODER = "ours, vectors of an encoder too"


def cases(accuracy: Result, trial: str) -> list[list[Result]]:
    """Return the runs of a trial for each number of rows and set, with one run for each seed."""
    by_case = defaultdict(list)
    for run in accuracy.runs:
        if run.trial == trial and {"ours", "words", "words or characters"} <= run.keys():
            by_case[run.rows, run.set].append(run)
    return [by_case[case] for case in sorted(by_case)]


def sets_by_rows(accuracy: Result) -> list[tuple[int, list[list[Result]]]]:
    """Return each number of rows with the runs without a trial, for each set."""
    by_rows = defaultdict(list)
    for runs in cases(accuracy, ""):
        by_rows[runs[0].rows].append(runs)
    return list(by_rows.items())


def mean_of(runs: list[Result], way: str) -> str:
    """Return the mean accuracy of a way over runs."""
    return f"{mean(run[way] for run in runs):.1f}"


def ahead(runs: list[Result], *among: str) -> float:
    """Return our lead over the best of some peers, as the mean over the seeds. By default, both of scikit-learn."""
    peers = among or ("words", "words or characters")
    return min(mean(run.ours - run[peer] for run in runs) for peer in peers)


def beside(peers: Result) -> list[tuple[int, str, list[list[Result]]]]:
    """Return (rows, peer, runs) for each number of rows and peer, with the runs of each set that has the peer."""
    by_peer: dict[tuple[int, str], dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for run in peers.runs:
        for peer in ("ours", "words", "words or characters", "fastText", "model2vec", "SetFit", "ours, taught"):
            if peer in run:
                by_peer[run.rows, peer][run.set].append(run)
    return [(rows, peer, list(sets.values())) for (rows, peer), sets in by_peer.items()]


def by_set(measured: Result) -> list[list[Result]]:
    """Return the runs of each set, in the order of the sets' names."""
    runs = sorted(measured.runs, key=lambda run: str(run["set"]))
    return [list(group) for _, group in itertools.groupby(runs, key=lambda run: run["set"])]


def vectors_right(vectors: Result) -> list[float]:
    """Return the mean accuracy over the sets with wordllama's vectors, and with those of an encoder added."""
    return [over_sets(by_set(vectors), way) for way in ("ours, vectors", WITH_ENCODER)]


def vectors_seconds(vectors: Result) -> list[float]:
    """Return the mean seconds of the ways of `vectors_right`."""
    return [over_sets(by_set(vectors), f"{way}, s") for way in ("ours, vectors", WITH_ENCODER)]


def with_encoder(vectors: Result, runs: list[Result]) -> str:
    """Return the accuracy with the vectors of an encoder added, on the set of these runs."""
    return mean_of([run for run in vectors.runs if run["set"] == runs[0]["set"]], WITH_ENCODER)


def over_sets(sets: list[list[Result]], way: str) -> float:
    """Return the mean over sets of the mean over seeds."""
    return mean(mean(run[way] for run in runs) for runs in sets)


def leads(runs: list[Result], peer: str) -> float:
    """Return the lead of ours with word vectors over a peer on one set, as the mean over its seeds."""
    return mean(run["ours, vectors"] - run[peer] for run in runs)


class Tuned(NamedTuple):
    """Two ways of fine-tuning on 500 rows of one set, in the draws of rows that both have.

    Attributes
    ----------
    ours, setfit : float
        The mean accuracy in percent.
    our_seconds, setfit_seconds : float
        The mean time to a model.
    draws : int
        The number of draws.

    """

    ours: float
    setfit: float
    our_seconds: float
    setfit_seconds: float
    draws: int


def tuned_beside(fine_tuning: Result) -> dict[str, Tuned]:
    """Return the figures of our fine-tuning and of SetFit, by the name of the set."""
    by_draw: dict[str, dict[int, dict[str, Result]]] = defaultdict(lambda: defaultdict(dict))
    for run in fine_tuning.runs:
        if run.rows == 500:
            by_draw[run.set][run.seed][run.way] = run
    found = {}
    for name, draws in by_draw.items():
        both = [ways for ways in draws.values() if {"tuned", "SetFit"} <= ways.keys()]
        if both:
            means = [mean(ways[way][what] for ways in both) for what in ("accuracy", "seconds") for way in _TUNED]
            found[name] = Tuned(*means, len(both))
    return found


_TUNED = ("tuned", "SetFit")


# reliability.md


def by_kind(trials: list[Result]) -> list[list[Result]]:
    """Return the trials of each kind."""
    of_kind = defaultdict(list)
    for trial in trials:
        of_kind[trial.kind].append(trial)
    return list(of_kind.values())


SUBJECTS = {
    "workers, the command or everything killed or interrupted, also between two steps of a commit": (
        "kill_workers", "kill_all", "kill_client", "kill_at_a_step", "interrupt", "lose_a_node",
    ),
    "processes stopped for seconds (SIGSTOP), then continued or killed": ("stop_and_continue", "kill_a_stopped_worker"),
    "the scheduler killed or stopped": ("lose_the_scheduler",),
    "a chunk that kills every worker that reads it": ("poison_a_chunk",),
    "a full or read-only disk, limits on file size and open files": (
        "fill_the_disk", "make_the_disk_read_only", "limit_file_size", "limit_descriptors",
    ),
    "an input file replaced, extended, cut, touched or deleted": ("change_the_input",),
    "files of the output deleted, emptied, cut or changed": ("lose_output", "damage_output"),
    "shares and their merge, or `select`, killed and run again": ("kill_shares_and_their_merge", "kill_a_choice"),
    "two jobs at once in one folder, or one that overwrites it": (
        "resume_twice_at_once", "start_twice_at_once", "overwrite_while_it_runs",
    ),
    "the clock set by minutes to a day": ("set_the_clock",),
    "a server's models replaced and reloaded": ("reload_models",),
    "a server, its engine or its HTTP processes killed, stopped or ended": (
        "lose_an_engine", "lose_an_http_process", "kill_a_server", "end_a_server",
    ),
}  # fmt: skip
"""The rows of the table of reliability.md, and the kinds of trials in each row."""


def by_subject(trials: list[Result]) -> list[tuple[str, list[Result]]]:
    """Return the trials of each subject. Raises KeyError for a kind without a subject."""
    subject_of = {kind: subject for subject, kinds in SUBJECTS.items() for kind in kinds}
    found: dict[str, list[Result]] = {subject: [] for subject in SUBJECTS}
    for trial in trials:
        found[subject_of[trial.kind]].append(trial)
    return list(found.items())


def verdicts(trials: list[Result]) -> dict[str, int]:
    """Return how many trials had each verdict."""
    return {name: sum(trial.verdict == name for trial in trials) for name in ("identical", "told", "wrong", "hung")}


# serving.md


def rounded(value: float, whole_from: float = 20) -> str:
    """Return a number with one decimal, or without one from `whole_from` on."""
    return f"{value:,.0f}" if value >= whole_from or not value else f"{value:.1f}"


def latency(row: Result, number: int) -> str:
    """Return p50 and p99 at one of the shares of the highest rate, or a dash if there is no such rate."""
    if not row.below:
        return "–"
    return f"{rounded(row.below[number].p50_ms, 10)}, {rounded(row.below[number].p99_ms, 10)}"


# docs/wrong_labels.md


def gain(next_rows: Result, way: str) -> float:
    """Return the points of accuracy that more rows add, as the mean over the sets."""
    return over_sets(by_set(next_rows), way) - over_sets(by_set(next_rows), "before")


def first_listed(run: Result) -> int:
    """Return twice the number of rows with a wrong label."""
    return 2 * run.wrong


def of_first(run: Result, way: str) -> int:
    """Return how many wrong labels are among the first `first_listed` rows."""
    return run[f"{way}, first {first_listed(run)}"]


def median_first(runs: list[Result], way: str) -> str:
    """Return the median of `of_first` over the draws of a set."""
    return f"{median(of_first(run, way) for run in runs):g}"
