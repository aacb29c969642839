"""docs/reliability.md: what became of jobs that were disturbed at random."""

from __future__ import annotations

from collections import Counter
from typing import Any

from benchmarks.pages.markdown import machine, one_cell, table

_VERDICTS = ("identical", "told", "wrong", "hung")

HEAD = """# Reliability

Every figure comes from `benchmarks/results/chaos_*.json`; `python -m benchmarks.pages` makes this page from them.

A job that is killed, starved or interfered with must end in one of two ways. Either it finishes, after `--resume` where
a run was killed or had stopped with a message, and every file of its output but the records of its runs is byte for
byte what an undisturbed run writes (*identical*). Or it ends with a message that says why it cannot be finished, and
the output has no `_SUCCESS` (*told*). Anything else is *wrong*: other bytes, a lost row, a traceback, an exit code of 0
for a job that is not whole. A command that has not ended 150 s after it was last disturbed, or that leaves processes
behind, is *hung*.

`python -m benchmarks.chaos` runs such trials. Each takes a small job (240 rows in 12 chunks, from CSV, JSON Lines,
Parquet or compressed CSV), starts the command as a user would, waits for a random moment (a number of committed chunks,
or a time from before the plan to after the end), and disturbs it. A seed and a number give the same choices again.
"""

OBJECT_STORES = """## In object stores

An object is there whole or not at all, and nothing can be renamed. Output there is kept exactly once by conditions that
the store itself checks with each write:

- *The claim* is created on the condition that there is none (`If-None-Match: *`). Of jobs that begin at once, one is
  told that it has created it; the others end with a message. `--overwrite` replaces the claim, and then lists and
  removes what is there.
- *Plan, manifest, parts, quarantined rows, entries* are created on the same condition, so none is ever replaced: what
  an entry says of its files stays true. Where an object is there already, its content decides: the same was written by
  an earlier attempt, and is as good; another is an error that names the object. Each object that is created carries a
  number of its attempt, so that a request whose answer was lost is recognised when it is repeated.
- *After a write, the claim is read again.* If it is still the job's, the object was there before another job took the
  folder, and that job, which lists the folder after it has taken it, removes it. If not, the writer removes what it has
  just written, and ends. One case is left: a process that is killed between its last write and that look, and whose
  folder is taken meanwhile, can leave one chunk's files. `verify` names them, and `--resume` removes them.
- *The end* is written into the manifest on the condition that it is still the manifest that was read (`If-Match`);
  `_SUCCESS` comes last.
- *A store that ignores conditions* would keep none of this. Each job begins with an object that it creates twice, and
  updates as if it were another; unless the store refuses the second and the third request, the job is refused.

Requests that fail because the server is overloaded or cannot be reached (429, 500 to 504, connections that are refused,
reset or silent) are repeated for five minutes with growing pauses of at most five seconds, each signed anew. After
that, and when credentials have expired, the job ends, be it input or output that is not reached; `--resume` continues
it.

`tests/test_object_store.py` runs jobs against a real S3 server (SeaweedFS 4.48): eight racing creates, and eight racing
updates, had one winner in 20 of 20 rounds each. A proxy drops, resets, delays and refuses requests, and loses answers
to writes that were carried out; processes are killed (SIGKILL) after writes of claim, part, entry and totals; jobs race
for a folder, and overwrite each other's. Every output is byte for byte that of the same job on disk. moto 5.2 keeps to
the conditions, too. AWS S3, Google Cloud Storage and Azure document them; they were not tried.
"""

_SECTIONS = {
    "local": (
        "On one machine",
        "One to three worker processes on CPU cores. Disks that fill up are small tmpfs mounts; the clock that is "
        "set is that of the job's processes, by a library that they load.",
    ),
    "cuda": ("On GPUs", "A worker process for each GPU, and the CUDA kernels."),
    "slurm": (
        "In Slurm",
        "A real Slurm of four nodes, each a network namespace of one machine; netfilter loses packets and `tc` "
        "narrows links between them.",
    ),
}


def page(*results: dict[str, Any]) -> str:
    """The page, from the results of benchmarks.chaos."""
    total = Counter(trial["verdict"] for result in results for trial in result["trials"])
    listed = ", ".join(f"{total[name]} {name}" for name in _VERDICTS)
    return "\n".join([HEAD, f"In all: {total.total()} trials, {listed}.\n", *map(_section, results), OBJECT_STORES])


def _section(result: dict[str, Any]) -> str:
    about, trials = result["about"], result["trials"]
    title, what = _SECTIONS[about["cluster"]]
    named = {trial["kind"]: trial["what"] for trial in trials}
    rows = []
    for kind, words in named.items():
        found = Counter(trial["verdict"] for trial in trials if trial["kind"] == kind)
        rows.append(f"{words} | `{kind}` | {found.total()} | " + " | ".join(str(found[name]) for name in _VERDICTS))
    failed = [
        f"- trial {trial['number']}, `{trial['kind']}`, {trial['verdict']}: {one_cell(trial['why'])[:300]}"
        for trial in trials
        if "why" in trial
    ]
    options = f"--trials {len(trials)} --seed {result['seed']} --at-once {result['at_once']}"
    cluster = "" if about["cluster"] == "local" else f" --cluster {about['cluster']}"
    return f"""## {title}

{machine(about, "python", "dask", "distributed", "dask-cuda", "cupy")}.

{what}

    python -m benchmarks.chaos {options}{cluster}

{table("what happened | kind | tried | identical | told | wrong | hung", rows)}
""" + ("\n" + "\n".join(failed) + "\n" if failed else "")
