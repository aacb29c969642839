"""docs/decompression.md: what each library reaches, and why Broadsheet reads with the ones that it does."""

from __future__ import annotations

from typing import Any

from benchmarks.pages.markdown import machine, table

HEAD = """# How compressed files are read

{machine}.

The figures come from `benchmarks/results/decompression.json`; `python -m benchmarks.decompression` takes them, and
`python -m benchmarks.pages` makes this page from it. The text is AG News as JSON Lines: an article a line ("short"),
and 20 joined, 5 KB ("long"). Rates are MB of decompressed content a second, from files in the page cache, the best of
two rounds. "One core" counts seconds of processor time; "all" is one thread on each core by the clock.

## By one core, and by one thread on each

"""

LIBRARIES = """
All of these let other threads run while they decompress. Broadsheet's own rows hold everything that a job does with a
file besides parsing it. It reads gzip by `isal`, and by the interpreter's `zlib` where that is not installed; zstd by
`backports.zstd`, which is in Python from 3.14 on; lz4 by `lz4`; bz2 and xz by the interpreter. A unit (a gzip member,
say) in which one of them fails is read again by the one that is the same on every machine, a byte at a time around the
damage. So whatever is installed, all before the place at which a file is cut off is read, and the message is the same.
Within damage isal goes on a little further than zlib at times, since it takes tables of codes that zlib refuses.

## One large file

"""

LARGE = """
gzip of 64 MiB and more with six cores or more, and bz2 of 8 MiB with two, are decompressed by `rapidgzip`, with up to
16 threads in a process of its own, which may hold 1.5 GiB; one at a time, since a file for each core is faster. Where
it is not installed, ends, takes more memory, or meets anything but sound data to the end, one core reads the file again
and goes on from there. rapidgzip begins anywhere in a gzip file without knowing what came before, which takes about
three times the work, so few cores gain nothing. Only files of this machine are read so; one from an object store is
read by one core. zstd of several frames is cut at the ends of frames, of up to 16 MiB each, wherever the file lies.
"""


def page(result: dict[str, Any]) -> str:
    """The page."""
    about = result["about"]
    found = {(row["compression"], row["library"], row["text"]): row for row in result["libraries"]}
    names = dict.fromkeys((compression, library) for compression, library, _ in found)
    rows = (
        f"{compression} | {library} | "
        + " | ".join(f"{found[compression, library, t][of]:,.0f}" for t in ("short", "long") for of in ("one", "all"))
        for compression, library in names
    )
    large = (
        f"{run['compression']}{', frames of 4 MiB' if run['compression'] == 'zstd' else ''} | {run['megabytes']:,.0f} "
        f"| {run['one_core']:,.0f} | {run['all_cores']:,.0f} | {run['all_cores'] / run['one_core']:.1f}"
        for run in result["large"]
    )
    head = HEAD.format(machine=machine(about, "python", "isal", "backports.zstd", "lz4", "rapidgzip", "pyarrow"))
    return "".join(
        [
            head,
            table("compression | library | short, one core | all | long, one core | all", rows),
            "\n",
            LIBRARIES,
            table(f"compression | MB | one core, MB/s | {about['cores']} cores, MB/s | times", large),
            "\n",
            LARGE,
        ]
    )
