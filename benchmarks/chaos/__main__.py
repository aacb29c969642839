"""Disturb small jobs at random moments in random ways, and compare their outputs with that of an undisturbed run.

    python -m benchmarks.chaos --trials 100 --seed 1 --at-once 2 --output benchmarks/results/chaos_local.json
    python -m benchmarks.chaos --trials 40 --cluster slurm  # as root, with slurm-wlm, munge, iproute2, iptables
    python -m benchmarks.chaos --trials 40 --cluster cuda
    python -m benchmarks.chaos --trials 5 --kind interrupt --kind kill_workers
    python -m benchmarks.chaos --seed 1 --only 17                # one trial of that seed again

The seed and the number of a trial determine all of its choices, but not the timing of the machine. Trials that the
output file already has for the same seed are not run again, so an interrupted run can be continued.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.chaos import machine, network
from benchmarks.chaos.jobs import JOBS, run_undisturbed
from benchmarks.chaos.trial import BAD, Trial, Verdict, run_trial
from benchmarks.record import about, parser, write
from broadsheet.cluster.protocol import count_gpus
from broadsheet.cluster.settings import WORKERS_ON_A_GPU

CLUSTERS = ("local", "cuda", "slurm")


@contextmanager
def _kinds(options: argparse.Namespace, folder: Path) -> Iterator[list[Callable[[Trial], Verdict]]]:
    """Yield the kinds of disturbances that can be tried on this machine, and print the others with the reason."""
    if options.cluster == "slurm":
        with network.slurm(folder / "slurm") as all_kinds:
            yield _chosen(all_kinds, options.kind)
        return
    kinds = []
    for kind in _chosen(machine.KINDS, options.kind):
        if reason := machine.missing(kind, options.cluster):
            print(f"not tried: {kind.__name__} ({reason})", file=sys.stderr)
        else:
            kinds.append(kind)
    yield kinds


def _chosen(kinds: Any, names: list[str] | None) -> list[Any]:
    """Return the kinds with these names, or all. Raises SystemExit for an unknown name."""
    known = {kind.__name__: kind for kind in kinds}
    unknown = [name for name in names or () if name not in known]
    if unknown:
        sys.exit(f"no kind {unknown[0]!r}; there are: {', '.join(known)}")
    return [known[name] for name in names or known]


def summary(trials: list[dict[str, Any]]) -> str:
    """Return the numbers of verdicts by kind, as lines for a terminal."""
    verdicts: dict[str, Counter[str]] = {}
    for trial in trials:
        for kind in (trial["kind"], "all"):
            verdicts.setdefault(kind, Counter())[trial["verdict"]] += 1
    return "\n".join(
        f"{kind}: {', '.join(f'{n} {name}' for name, n in counts.items())}" for kind, counts in verdicts.items()
    )


def _recorded(output: Path | None, seed: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the trials that the output file has from an earlier run, and the commits that it measured."""
    if output is None or not output.exists():
        return [], []
    recorded = json.loads(output.read_text())
    if recorded["seed"] != seed:
        sys.exit(f"{output} is of seed {recorded['seed']}")
    return recorded["trials"], recorded["about"]["commit"].split(", ")


def main() -> None:
    """Run the trials. The exit code is 1 if one of them is wrong or hung."""
    command = parser(__doc__)
    command.add_argument("--trials", type=int, default=50)
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--cluster", choices=CLUSTERS, default="local")
    command.add_argument("--kind", action="append", help="only this kind; may be repeated")
    command.add_argument("--only", type=int, help="only the trial of this number")
    command.add_argument("--at-once", type=int, default=1, help="trials at a time")
    command.add_argument("--keep", type=Path, help="folder in which trials that are wrong or hung are left")
    options = command.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        # Run each job undisturbed, for the expected outputs.
        folder = options.keep or Path(temporary)
        where = ("--cluster", "cuda", "--device", "cuda") if options.cluster == "cuda" else ("--device", "cpu")
        workers = WORKERS_ON_A_GPU * count_gpus() if options.cluster == "cuda" else 3
        jobs = [run_undisturbed(name, folder, ("--model", options.model, *where)) for name in JOBS]
        # Read the trials of an earlier run.
        numbers = range(options.trials) if options.only is None else [options.only]
        trials, commits = _recorded(options.output, options.seed)
        result = {
            "about": about(options, cluster=options.cluster),
            "seed": options.seed,
            "at_once": options.at_once,
            "undisturbed_seconds": {job.name: round(job.seconds, 2) for job in jobs},
            "trials": trials,
        }
        result["about"]["commit"] = ", ".join(dict.fromkeys([*commits, result["about"]["commit"]]))
        # Run the others, and write the file after each one.
        finished = {trial["number"] for trial in trials}
        with _kinds(options, folder) as kinds, ThreadPoolExecutor(options.at_once) as pool:

            def run_one(number: int) -> dict[str, Any]:  # the kinds take turns
                kind = kinds[number % len(kinds)]
                own = [job for job in jobs if job.name == machine.JOB_OF.get(kind, job.name)]
                return run_trial(kind, number, options.seed, own, folder, workers)

            for trial_record in pool.map(run_one, (number for number in numbers if number not in finished)):
                trials.append(trial_record)
                if trial_record["verdict"] in BAD or options.only is not None:
                    print(trial_record, file=sys.stderr, flush=True)
                if options.output:
                    write(result, options.output)
    print(summary(trials), file=sys.stderr)
    sys.exit(any(trial["verdict"] in BAD for trial in trials))


if __name__ == "__main__":
    main()
