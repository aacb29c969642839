"""The commands `inspect`, which shows what a model or an output folder holds, and `verify`, which checks a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ..errors import UsageError, counted, install
from ..report.console import PlainConsole, facts_table, lines, print_fact, print_file, print_json, say
from ..storage.names import as_url
from .flags import Endpoint, Root

if TYPE_CHECKING:
    from rich.table import Table

    from ..kernels.memory_plan import Buffer
    from ..model.charcnn import Model
    from ..model.encoder import Encoder
    from ..model.fasttext import FastText
    from ..model.ngrams import NGrams
    from ..model.torch_encoder import TorchEncoder
    from ..output.look import Facts

_WHAT = "A model (a shipped one's name, a file, hf://USER/NAME), or the output folder of a job."
_INPUT = "Also check that the input files have not changed, and have as many rows as the output accounts for."
_OTHER = "The output of another job over the same input: show where the two differ."
_PER = "Show the scores of a job's output for each value of this column; may be repeated."
_BY = "With --per or OTHER/, the column of scores: score, or score_NAME for one class."
_AT = "With --per or OTHER/, count the rows with at least this score; may be repeated."
_PAGE = "With --per, also write the result to this page: the report of the job, or a new file."
_CARD = (
    "Write a README about the output of a finished job: its rows, labels and columns, what is missing, and how it was "
    "made. If the name ends in .json, write a Croissant card."
)
_MOST_NAMES = 20
_LONGEST_NAME = 60
_MOST_VALUES = 50
_FRAMES = {
    "text": "text: what comes after the end of a text is not computed",
    "dense": "dense: every row is computed, also after the end of a text",
}

_NO_SCALES = "no activation scales: broadsheet calibrate --int8 finds them"
_OF_HEADS = "calibrated head by head, for each head with enough held-out rows"
_NO_TEMPERATURE = "not calibrated: broadsheet calibrate finds a temperature"


def inspect(
    model: Annotated[str, typer.Argument(metavar="MODEL|OUT/", help=_WHAT)],
    other: Annotated[str | None, typer.Argument(metavar="OTHER/", help=_OTHER, show_default=False)] = None,
    per: Annotated[list[str] | None, typer.Option(metavar="NAME", help=_PER)] = None,
    by: Annotated[str | None, typer.Option(metavar="NAME", help=_BY)] = None,
    at: Annotated[list[float] | None, typer.Option(metavar="SCORE", help=_AT)] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE.html", help=_PAGE)] = None,
    card: Annotated[Path | None, typer.Option(metavar="README.md", help=_CARD)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    memory: Annotated[bool, typer.Option("--memory", help="Show how much GPU memory the model takes.")] = False,
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="With --memory, articles in a batch.")] = 4096,
    precision: Annotated[str, typer.Option(metavar="fp32|fp16|bf16|int8", help="Number format for --memory.")] = "fp16",
) -> None:
    """Show what a model or the output folder of a job holds.

    For a model, the command shows layers, alphabet, frame, classes and card. If the file is damaged, it names the first
    wrong tensor.

    For the output of a job, also of one that still runs, it shows how many rows each label has, and which shares of
    them have scores of at least 0.5, 0.6 and so on, up to 0.99.
    """
    from ..model.encoder_file import is_folder
    from ..storage.buckets import is_bucket

    # Show or describe the output of a job.
    if card is not None:
        _write_card(model, card)
        return
    if other is not None or per:
        _show_rows(model, other, {"per": per or [], "by": by, "at": at or []}, report, as_json)
        return
    if by or at or report:
        raise UsageError("--by, --at and --report go with --per, or with another job")
    if (Path(model).is_dir() and not is_folder(Path(model))) or is_bucket(model):
        _show_output(model, as_json)
        return

    # Load a model, and plan its memory if the user asks for it.
    from ..kernels.memory_plan import Parts, page_locked, plan
    from ..kernels.storage import STORAGE
    from ..model.loading import load_model

    loaded = load_model(model)
    if precision not in STORAGE["sm80"]:
        raise UsageError(f"precision {precision!r}: choose fp32, fp16, bf16 or int8")
    if memory and loaded.encoder is not None:
        raise UsageError(f"{loaded.name} is an encoder, whose memory is not planned: leave out --memory")
    stored, parts = STORAGE["sm80"][precision], Parts.of(loaded)
    buffers = plan(loaded.layers, batch, stored, loaded.frame, loaded.ngrams, parts) if memory else []
    on_host = page_locked(loaded.layers, batch, loaded.frame) if memory else []

    # Print the memory or the model.
    if as_json:
        about = about_model(loaded)
        if memory:
            for name, planned in (("memory", buffers), ("page_locked", on_host)):
                about[name] = [{"name": b.name, "bytes": b.bytes, "count": b.count} for b in planned]
        print_json(about)
    elif memory:
        console = PlainConsole()
        _print_memory(f"GPU memory, batches of {batch:,}, {precision}", buffers, console)
        _print_memory("page-locked memory of the host", on_host, console)
    else:
        print_model(loaded, PlainConsole())


def _print_memory(title: str, buffers: Sequence[Buffer], console: PlainConsole) -> None:
    from ..kernels.memory_plan import planned_bytes
    from ..report.tables import new_table

    table = new_table(title, "count", "MB", overflow="ellipsis")
    table.show_footer = True
    table.columns[0].footer, table.columns[2].footer = "all of it", f"{planned_bytes(buffers) / 1e6:,.1f}"
    for buffer in buffers:
        table.add_row(buffer.name, str(buffer.count), f"{buffer.total / 1e6:,.1f}")
    console.print(table)


def about_model(model: Model) -> dict[str, object]:
    """Return what the command prints about a model, as JSON values."""
    from ..model.fasttext import FastText
    from ..model.layers import WHOLE
    from ..model.ngrams import NGrams
    from ..model.several import heads_of

    whole = model.ngrams if isinstance(model.ngrams, FastText) else None
    beside = model.ngrams if isinstance(model.ngrams, NGrams) else None
    return {
        "model": model.name,
        "digest": model.digest,
        "parameters": model.parameters,
        "dtype": model.dtype,
        "reads": None if model.reads == WHOLE else model.reads,
        "length": model.length if model.has_network else None,
        "frame": model.frame if model.has_network else None,
        "temperature": model.temperature,
        "thresholds": model.thresholds,
        "scales": None if model.scales is None else msgspec.to_builtins(model.scales),
        "ngrams": beside and {**beside.about, "buckets": len(beside.table)},
        "fasttext": whole and {**whole.about, "words": whole.known, "rows": list(whole.table.shape)},
        "encoder": model.encoder and _about_encoder(model.encoder),
        "alphabet": model.alphabet.symbols if model.has_network else None,
        "classes": list(model.classes),
        "heads": None if model.heads is None else {head.name: list(head.classes) for head in heads_of(model)},
        "layers": [
            {"name": layer.name, "rows": layer.rows_pooled, "channels": layer.outputs, "mflop": layer.flop / 1e6}
            for layer in (model.layers if model.has_network else ())
        ],
        "preparation": None if model.preparation is None else msgspec.to_builtins(model.preparation.steps),
        "learned_rows": None if model.learned is None else model.learned.rows,
        "card": dict(model.card),
    }


def _about_encoder(encoder: Encoder | TorchEncoder) -> dict[str, Any]:
    from ..model.encoder import Encoder

    settings = encoder.about
    if isinstance(encoder, Encoder):
        del settings["rules"]
    return {**settings, "runs_in": encoder.runs_in, "width": encoder.width, "entries": encoder.tokens.size}


def _of_encoder(encoder: Encoder | TorchEncoder) -> dict[str, str]:
    from ..model.encoder import NO_PRODUCT, Encoder

    settings, width = encoder.settings, encoder.width
    vocabulary = f"a vocabulary of {encoder.tokens.size:,}"
    reads = f"{settings.most_tokens:,} tokens, with the {encoder.framing} that frame a text; {vocabulary}"
    if not isinstance(encoder, Encoder):
        return {
            "encoder": f"{encoder.settings.family}, of {width} values",
            "runs in": f"{encoder.runs_in}, on a GPU and on a CPU",
            "reads": reads,
        }
    layers = counted(encoder.settings.layers, "layer")
    steps = encoder.settings.head
    head = ", ".join(
        [*(f"product, {step}" if step not in NO_PRODUCT else step.replace("_", " ") for step in steps), "product"]
    )
    pooled = "the first token" if encoder.settings.pooling == "cls" else "the mean of all tokens"
    return {
        "encoder": f"{layers} of {width} values and {encoder.settings.heads} heads, {encoder.settings.activation}",
        "runs in": f"{encoder.runs_in} on a GPU, NumPy on a CPU",
        "reads": reads,
        **({} if encoder.settings.has_places else {"places": _places(encoder)}),
        "head": f"of {pooled}: {head}",
    }


def _places(encoder: Encoder) -> str:
    """Return how attention knows the positions of tokens in an encoder without position vectors."""
    distances, rotary = encoder.settings.distances, encoder.settings.rotary
    if distances is not None:
        near = distances.span // 2
        return f"by the distance of two tokens: each up to {near:,}, groups from there to {distances.farthest:,}"
    windows = [one.window for one in rotary if one.window is not None]
    if not windows:
        return "rotary"
    layers = counted(encoder.settings.layers, "layer")
    return f"rotary; {len(windows)} of {layers} attend to {windows[0]:,} tokens on either side"


def _worded(ngrams: NGrams) -> str:
    kinds, (low, high) = ngrams.kinds, ngrams.kinds.characters
    grams = [f"1 to {kinds.words} words" if kinds.words > 1 else "1 word"] if kinds.words else []
    grams += [f"{low} to {high} characters" if low < high else f"{low} characters"] if high else []
    used = int(ngrams.table.any(axis=1).sum())
    buckets = f"{used:,} of {len(ngrams.table):,} buckets used"
    return f"of {' and of '.join(grams)}, in the first {kinds.reads:,} characters; {buckets}"


def _of_fasttext(branch: FastText) -> dict[str, str]:
    kinds, (low, high) = branch.kinds, branch.kinds.characters
    read = [f"{branch.known:,} words"]
    read += [f"subwords of {low} to {high} characters"] if high else []
    read += [f"n-grams of up to {kinds.words} words"] if kinds.words > 1 else []
    rows, columns = branch.table.shape
    pruned = "" if branch.pruned is None else f", of which {len(branch.pruned):,} have a row"
    size = "a column for each class" if branch.output is None else "and a matrix from columns to classes"
    return {
        "fastText": f"trained with the loss {kinds.loss}",
        "reads": f"whole texts: {', '.join(read)}" + (f"; {kinds.buckets:,} buckets{pruned}" if kinds.hashes else ""),
        "table": f"{rows:,} rows of {columns:,} columns, {size}",
    }


def _names(model: Model) -> list[str]:
    return [name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…" for name in model.classes]


def _classes(names: list[str]) -> str:
    more = f", … and {len(names) - _MOST_NAMES}" if len(names) > _MOST_NAMES else ""
    return f"{len(names)}: " + ", ".join(names[:_MOST_NAMES]) + more


def print_model(model: Model, console: PlainConsole) -> None:
    """Print the name, classes, alphabet, layers and card of a model."""
    from ..model.fasttext import FastText
    from ..model.several import heads_of

    # Begin with the facts of a network that gives one label.
    names = _names(model)
    print_fact("model", model.name, console)
    facts = {
        "weights": f"{model.parameters:,} parameters, {model.dtype}",
        "digest": model.digest,
        "classes": _classes(names),
        "alphabet": f"{len(model.alphabet)} symbols: {model.alphabet.symbols!r}",
        "length": f"{model.length} characters",
        "frame": _FRAMES[model.frame],
        "scores": f"calibrated: temperature {model.temperature:.4g}" if model.is_calibrated else _NO_TEMPERATURE,
        "int8": _NO_SCALES,
    }

    # Say what the scores of other models mean.
    if model.by_class is not None:
        facts["scores"] += "; then by class"
    if model.levels is not None:
        ends = (f"{model.levels.low + model.levels.step * level:g}" for level in (0, len(names) - 1))
        off = f", off by {model.levels.spread * model.levels.step:.3g} (root mean square)"  # by its training
        facts["scores"] = f"numbers from {' to '.join(ends)}{'' if model.encoder else off}; labels: the nearest level"
    if model.thresholds is not None:
        pairs = zip(names[:_MOST_NAMES], model.thresholds, strict=False)
        facts["scores"] = "several labels a text, from these scores on: " + ", ".join(f"{n} {t:.2g}" for n, t in pairs)
    if model.heads is not None:
        of_each = "; ".join(f"{head.name} {_classes(_names(head))}" for head in heads_of(model))
        facts = {("heads" if name == "classes" else name): fact for name, fact in facts.items()}
        facts |= {"heads": of_each, "scores": _OF_HEADS}

    # Add or take out what depends on the parts of the model.
    if not model.has_network:
        facts["int8"] = "the same as in every precision: n-grams alone, no network"
        facts = {name: fact for name, fact in facts.items() if name not in ("alphabet", "length", "frame")}
    if model.scales is not None:
        scales = ", ".join(f"{name} {step:.3g}" for name, step in model.scales.steps.items())
        facts["int8"] = f"steps of 8-bit inputs: {scales}; found on {model.scales.found_on[:16]}"
    if isinstance(model.ngrams, FastText):
        facts = {name: facts[name] for name in ("digest", "classes", "scores")} | _of_fasttext(model.ngrams)
    elif model.ngrams is not None:
        facts["n-grams"] = _worded(model.ngrams)
    if model.encoder is not None:
        facts |= _of_encoder(model.encoder)
        del facts["int8"]
    if model.preparation is not None:
        facts["prepares"] = f"each text before it reads it: {model.preparation}"

    # Print all of it, with layers and card.
    console.print(facts_table(facts.items()))
    if model.has_network:
        console.print(_layers(model))
    shown = {k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in model.card.items()}
    if shown:
        console.print(facts_table(shown.items()))


def _layers(model: Model) -> Table:
    from ..report.tables import new_table

    table = new_table("block", "operation", "output", "MFLOP", overflow="ellipsis")
    table.columns[1].justify = "left"
    for layer in model.layers:
        kernel = f" k={layer.kernel}" if layer.kind == "conv1d" else ""
        steps = [f"{layer.kind} {layer.inputs}→{layer.outputs}{kernel}"]
        steps += ["layer norm"] if layer.norm else []
        steps += ["ReLU"] if layer.relu else ["sigmoid" if model.is_multi_label else "softmax"]
        steps += [f"max pool {layer.pool}"] if layer.pool > 1 else []
        shape = f"{layer.outputs} × {layer.rows_pooled}" if layer.kind == "conv1d" else f"{layer.outputs}"
        table.add_row(layer.name, ", ".join(steps), shape, f"{layer.flop / 1e6:.1f}")
    return table


def verify(
    output: Annotated[Path, typer.Argument(metavar="OUT/", help="The output folder of a finished job, or its URL.")],
    against_input: Annotated[bool, typer.Option("--input", help=_INPUT)] = False,
    root: Root = None,
    endpoint: Endpoint = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the totals as JSON.")] = False,
) -> None:
    """Read everything in an output folder again and check it.

    At the first damage, the command prints a message and ends with exit code 1.
    """
    import msgspec

    from ..output import verify as reread
    from ..report.summary import not_read
    from ..report.tally import balance

    totals = reread.verify(output, input=against_input, root=root, endpoint=endpoint)
    if as_json:
        print_json(msgspec.to_builtins(totals))
    else:
        name = as_url(str(output)) or output
        missing = not_read(totals, ())
        whole = "whole, as far as its input was read" if totals.problems else "whole"
        say(f"{name}: {whole}. {counted(totals.chunks, 'chunk')}; {counted(totals.rows_read, 'row')} {balance(totals)}")
        for line in missing:
            say(f"Input: {line}")


def _write_card(name: str, card: Path) -> None:
    """Write the README of an output folder, or its Croissant card if the name ends in .json.

    Raises UsageError if the file exists already.
    """
    from ..output.folder import OutputFolder
    from ..output.object_store import place_of
    from ..report.croissant import ASKED_FOR, croissant_card
    from ..report.folder_card import folder_card
    from ..storage.disk import refuse_outputs, write_file

    refuse_outputs({"--card": card}, False, lambda: ())
    folder, title = OutputFolder(place_of(name)), Path(name).name
    if card.suffix == ".json":
        text = json.dumps(croissant_card(folder, title), indent=1) + "\n"
        remark = f". Add what it lacks before you publish it: {', '.join(ASKED_FOR)}"
    else:
        text, remark = folder_card(folder, title), ""
    write_file(card, text.encode("utf-8", "backslashreplace"))
    say(f"{card} is written{remark}")


def _show_output(name: str, as_json: bool) -> None:
    """Print the totals and scores of a job so far. Raises UsageError if the folder is not the output of a job."""
    from ..labelling.counts import THRESHOLDS, rows_above
    from ..output.folder import OutputFolder
    from ..output.object_store import place_of
    from ..report.tables import new_table

    # Read the totals that the job has recorded, or add up those of its chunks.
    folder = OutputFolder(place_of(name))
    if not folder.is_begun:
        remedy = "give one that has a _manifest.json, or a model"
        raise UsageError(f"{name} is a folder, but not the output of a job: {remedy}")
    manifest = folder.manifest()
    totals = manifest.totals
    if totals is None:
        totals = folder.totals(folder.checked_plan(manifest), manifest.fingerprint.id)
    judged = [(totals.labels, totals.scores), *((other.labels, other.scores) for other in totals.others or ())]
    by_model = [
        (names.label, labels, {label: rows_above(bins) for label, bins in (scores or {}).items()})
        for names, (labels, scores) in zip(manifest.fingerprint.settings.labelled, judged, strict=True)
    ]

    # Print them, with a table for each model.
    if as_json:
        models = [{"column": column, "labels": labels, "kept": of_each} for column, labels, of_each in by_model]
        facts = {"finished": manifest.totals is not None, "thresholds": THRESHOLDS, "models": models}
        print_json({**facts, "totals": msgspec.to_builtins(totals)})
        return
    console = PlainConsole()
    state = "finished" if manifest.totals is not None else "not finished"
    about = f"{totals.rows_read:,} read, {totals.rows_written:,} written, {totals.rows_quarantined:,} quarantined"
    console.print(facts_table([("job", f"{state}, {counted(totals.chunks, 'chunk')}"), ("rows", about)]))
    for column, labels, of_each in by_model:
        table = new_table(column, "rows", *(f"≥ {score}" for score in THRESHOLDS))
        for label, count in sorted(labels.items(), key=lambda item: -item[1]):
            shares = [f"{n / count:.0%}" for n in of_each.get(label, ())]
            table.add_row(lines(label), f"{count:,}", *(shares or ["–"] * len(THRESHOLDS)))
        console.print(table)


def _show_rows(name: str, other: str | None, options: Facts, page: Path | None, as_json: bool) -> None:
    """Print the scores by the values of columns, as `look` finds them, or how two jobs differ, as `compare` does."""
    from ..processes.child import spare_pandas

    spare_pandas()
    from ..output.look import compare, look

    if page is not None and other is not None:
        raise UsageError("--report shows one job: leave out OTHER/, or --report")
    if page is not None and find_spec("matplotlib") is None:
        raise UsageError(f"--report needs Matplotlib: {install('report')}")
    told: Any = look(name, **options) if other is None else compare(name, other, **options)
    if page is not None:
        from ..report.page import save_looked

        save_looked(name, told, str(page))
    if as_json:
        print_file(f"{json.dumps(told, default=str)}\n")
    elif other is not None:
        _print_compared((name, other), told)
    else:
        for looked in told:
            if len({one["score"] for one in told}) > 1:
                say(f"{looked['score']} by {looked['column']}")
            _print_looked(looked)


def _print_looked(looked: Facts) -> None:
    """Print what thresholds keep, how the scores are distributed, and the label, length and correlation of the rows."""
    from ..output.look import QUANTILES

    column, values = looked["column"], [looked["all"], *looked["values"]]
    shares = {f"≥ {least:g}": f"{{kept[{number}]:.1%}}" for number, least in enumerate(looked["thresholds"])}
    _print_values(column, values, {"rows": "{rows:,}", **shares})
    quantiles = {f"{share:.0%}": f"{{quantiles[{number}]:.3g}}" for number, share in enumerate(QUANTILES)}
    quantiles = {"median" if head == "50%" else head: cell for head, cell in quantiles.items()}
    _print_values(column, values, {**quantiles, "std": "{std:.3g}"})
    chars = {f"chars ≥ {looked['at']:g}": "{kept_chars:,.0f}", "below": "{dropped_chars:,.0f}"}
    label = {"label": "{label!s:.16}", "share": "{label_share:.1%}"}
    _print_values(column, values, {**label, **chars, "follows length": "{follows_length:+.2f}"})
    for remark in looked["remarks"]:
        say(remark)


def _print_compared(names: Sequence[str], told: Facts) -> None:
    """Print how far two jobs agree, and example rows on which they disagree."""
    at, (first, second) = f"{told['at']:g}", names
    cells = {"rows": "{rows:,}", "same label": "{same_label:.1%}", "corr.": "{correlation:.3f}"}
    cells |= {f"both ≥ {at}": "{both:,}", "only 1st": "{only_first:,}", "only 2nd": "{only_second:,}"}
    for column, values in (told["values"] or {"": []}).items():
        _print_values(column, [told["all"], *values], cells)
    say(f"Rows that one alone has: {first} {told['alone'][0]:,}, {second} {told['alone'][1]:,}")
    for name, examples in zip(names, told["examples"], strict=True):
        for row in examples:
            both = "{score:.3f} {label}, {also:.3f} {other_label} | {file} row {row:,} {text:.60}"
            say(f"only {name} keeps {both.format(**row)}")


def _print_values(column: str, values: Sequence[Facts], cells: dict[str, str]) -> None:
    """Print a table with a row for each value, after a first row for all.

    Parameters
    ----------
    column : str
        The column of the values.
    values : sequence of dict
        The facts of all rows, then those of each value.
    cells : dict of str to str
        By table header, the format of a cell. Missing facts appear as a dash.

    """
    from ..output.look import shown
    from ..report.tables import new_table

    table = new_table(column, *cells, overflow="ellipsis")
    for number, one in enumerate(values[: _MOST_VALUES + 1]):
        given = one | {name: _Missing() for name, value in one.items() if value is None}
        table.add_row(shown(one["value"]) if number else "all", *(cell.format(**given) for cell in cells.values()))
    PlainConsole().print(table)


class _Missing:
    def __format__(self, _form: str) -> str:
        return "–"
