"""Read files of randomly changed lines in both ways, on the host and on the device, and compare the rows.

    python -m benchmarks.fuzz_records --jsonl-lines 10_000_000 --csv-records 2_000_000 --seconds 400 --seed 1 \
        --output fuzz.json
    python -m benchmarks.fuzz_records --device cpu --jsonl-lines 20_000 --csv-records 10_000  # no GPU is needed
    python -m benchmarks.fuzz_records --seed 1 --only 17                                      # one trial again

The files are JSON Lines, CSV, TSV and plain text. In most files, most lines are usual ones, so that the device reads
their blocks. The comparison covers rows, texts, kept columns, labels, numbers of characters, row numbers, the
quarantine with its byte offsets, reasons and heads, problems, notes, and the extent of each range. With `--device cpu`,
the C++ compiler compiles the kernels for the CPU, as in `tests/kernels`; all other code is the same as with a GPU.

The process exits with 1 if anything differs. The files of such a trial are kept in the folder `--keep`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, fields
from pathlib import Path

from benchmarks.fuzz_records.outcomes import Outcome, tried
from benchmarks.fuzz_records.reading import Counts
from benchmarks.fuzz_records.trials import Trial, trials_of
from benchmarks.record import about, parser, write
from broadsheet.pipeline.processes.threads import available_cores

_SHOWN = 20
"""The largest number of differences in the result, which also has the number of all differences."""


def _total(outcomes: list[Outcome]) -> dict[str, int]:
    """Return the sums of the outcomes' counts, by the names of `Counts`."""
    every = [outcome.counts for outcome in outcomes if outcome.counts is not None]
    return {each.name: sum(getattr(counts, each.name) for counts in every) for each in fields(Counts)}


def _run(options: argparse.Namespace, trials: list[Trial]) -> tuple[list[Outcome], list[str]]:
    """Run the trials in processes. Returns their outcomes, and the errors of trials without an outcome."""
    until = time.time() + options.seconds
    outcomes, failures = list[Outcome](), list[str]()
    context = multiprocessing.get_context("spawn")  # a forked process cannot use the GPU of its parent
    with ProcessPoolExecutor(options.processes, context) as pool:
        pending: dict[Future[Outcome], Trial] = {}
        for trial in trials:
            pending[pool.submit(tried, trial, options.seed, options.device, options.keep, until)] = trial
        for future in as_completed(pending):
            try:
                outcome = future.result()
            except Exception as error:  # of the trial, or because its process has died
                failures.append(f"trial {pending[future].number}: {type(error).__name__}: {error}")
                print(failures[-1], file=sys.stderr, flush=True)
                continue
            outcomes.append(outcome)
            for found in outcome.differences[:3]:
                print(found, file=sys.stderr, flush=True)
    return outcomes, failures


def main() -> None:
    """Draw the trials, run them, and write what was read and what differs."""
    command = parser(__doc__)
    command.add_argument("--jsonl-lines", type=int, default=200_000)
    command.add_argument("--csv-records", type=int, default=50_000, help="of CSV, TSV and plain text together")
    command.add_argument("--seconds", type=float, default=400, help="after which no trial begins")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    command.add_argument("--processes", type=int, default=available_cores())
    command.add_argument(
        "--only", type=int, help="only the trial of this number, of a run of the same numbers of lines"
    )
    command.add_argument("--keep", type=Path, default=Path("fuzz_records"), help="folder of files that differ")
    options = command.parse_args()
    # Draw and run the trials.
    most_lines = max(500, min(100_000, max(options.jsonl_lines, options.csv_records) // 8))
    trials = trials_of(options.seed, options.jsonl_lines, options.csv_records, most_lines)
    if options.only is not None:
        trials = [trial for trial in trials if trial.number == options.only]
    began = time.time()
    outcomes, failures = _run(options, trials)
    # Describe the outcomes.
    differences = [found for outcome in outcomes for found in outcome.differences]
    finished = [outcome for outcome in outcomes if outcome.counts is not None]
    result = {
        "about": about(options, device=options.device),
        "seed": options.seed,
        "trials": len(trials),
        "trials_done": len(finished),
        "lines": {
            suffix: sum(outcome.lines for outcome in finished if outcome.trial.suffix == suffix)
            for suffix in sorted({trial.suffix for trial in trials})
        },
        "read": _total(finished),
        "by_kind": {
            f"{kind} {suffix}": _total([o for o in finished if (o.trial.kind, o.trial.suffix) == (kind, suffix)])
            for kind, suffix in sorted({(trial.kind, trial.suffix) for trial in trials})
        },
        "not_readable": sorted({message for outcome in finished for message in outcome.unread})[:_SHOWN],
        "failures": failures[:_SHOWN],
        "differences": len(differences),
        "first_differences": differences[:_SHOWN],
        "slowest_trials": [
            {**asdict(o.trial), "seconds": round(o.seconds, 2)} for o in sorted(finished, key=lambda o: -o.seconds)[:5]
        ],
        "seconds": round(time.time() - began, 1),
    }
    write(result, options.output)
    sys.exit(bool(differences or failures))


if __name__ == "__main__":
    main()
