"""The commands `calibrate`, `convert`, `recipes` and `push`, which change, convert, prepare and upload models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ..errors import ModelError, UsageError, cause, counted
from ..options import READ
from ..report.console import PlainConsole, say
from ..storage.disk import refuse_outputs, write_file
from .flags import Device, OneModel, Output, Overwrite, Precision, Texts, in_panel, keywords, with_options

if TYPE_CHECKING:
    from ..model.charcnn import Model

_LABELLED = "Labelled texts that the model was not trained on: files, folders, globs or URLs."
_HELD_OUT = "Use only the rows of DATA that `train --hold-out SHARE` kept out."
_LABEL = "Column with the true class, by name or number.  [default: as in training]"
_BY_CLASS = "Also fit the scores of each class with at least 100 rows separately."
_INT8 = "Prepare the model for `--precision int8`."
_AGREEMENT = "Share of labels that must stay the same when the model asks its network about some texts only."
_TOP = "For a chain: fit it to find this share of texts, those with the highest scores, such as 10%."
_TOP_OF = "With --top, the class whose scores count."
_RECALL = "Least share of the --top texts that the encoder must read."
_FROM = "A .safetensors, a params.bin, fastText's .bin or .ftz; or an encoder's folder or hf://USER/NAME."
_PREPARATION = "How to prepare each text: the name of a recipe, or a JSON file of steps."
_JOIN = "Template that makes a text of columns, such as '{url}\\n\\n{text}'."
_CLASSES = "Class names for a params.bin.  [default: those in params.bin.json, or 0, 1, …]"
_ALPHABET = "Alphabet for a params.bin.  [default: that in params.bin.json, or the published one]"


@with_options(READ)
def calibrate(
    model: OneModel,
    data: Annotated[list[str], typer.Argument(metavar="DATA", help=_LABELLED, show_default=False)],
    output: Output,
    label_column: Annotated[str | None, in_panel("Input", "NAME", _LABEL)] = None,
    text_column: Texts = None,
    held_out: Annotated[float | None, in_panel("Input", "SHARE", _HELD_OUT)] = None,
    agreement: Annotated[float, in_panel("Labels", "SHARE", _AGREEMENT, hidden=True)] = 0.999,
    by_class: Annotated[bool, in_panel("Labels", "", _BY_CLASS, "--by-class")] = False,
    top: Annotated[str | None, in_panel("Labels", "SHARE", _TOP)] = None,
    top_of: Annotated[str | None, in_panel("Labels", "CLASS", _TOP_OF)] = None,
    recall: Annotated[float, in_panel("Labels", "SHARE", _RECALL, hidden=True)] = 0.95,
    int8: Annotated[bool, in_panel("Computing", "", _INT8, "--int8")] = False,
    device: Device = "auto",
    precision: Precision = "auto",
    overwrite: Overwrite = False,
    **flags: Any,
) -> None:
    """Turn scores into probabilities: about 90 % of the labels with a score of 0.9 are then right.

    The command finds the temperature, one number by which the model then divides all logits. It changes no label. For a
    model with n-grams, it also finds the margin below which the model asks its network (see --network of classify).
    `train` does both itself, on the rows that it holds out.

    With --int8, the command also finds the scales of 8-bit activations, on about 2,048 rows. These need no labels.
    """
    from ..evaluation import fitting
    from ..evaluation.chain import promised
    from ..model import cascade
    from ..model.loading import load_model
    from ..model.scores import BY_CLASS, CARD
    from ..report.phases import Phases
    from ..source.inputs import Paths, local_paths
    from ..source.rows.label_map import unmatched_line
    from .evaluate import chosen_columns

    # Find the activation scales for int8, which need no labels.
    refuse_outputs({"-o": output}, overwrite, lambda: [model, *local_paths(Paths(data))])
    read: dict[str, Any] = {"text_column": text_column or (), **keywords(flags, READ)}
    model_to_fit: Any = model
    if int8:
        model_to_fit = fitting.quantise(model, Paths(data), **read)
        model_to_fit.save(output)
        say(f"{output}: activation scales found on {model_to_fit.card['scales found on']['rows']:,} rows, for int8")
    if label_column is None and int8:
        return

    # Find the temperature, and the margin of a model with n-grams.
    read |= {"held_out": held_out, "agreement": agreement, "device": device, "precision": precision}
    read |= {"label_column": label_column, "by_class": by_class, "top": top, "top_of": top_of, "recall": recall}
    read["progress"] = Phases(PlainConsole(stderr=True))
    loaded = load_model(model_to_fit)
    if not (loaded.encoder is not None and loaded.cascade is not None):  # a chain needs no labels
        read |= chosen_columns(loaded, text_column, label_column, keywords(flags, READ))
    calibrated = fitting.calibrate(loaded, Paths(data), **read)
    calibrated.save(output)
    if "promise" in calibrated.card.get(cascade.CARD, {}):
        say(f"{output}: {promised(calibrated.card[cascade.CARD])}")
        return

    # Report what was found, and how much it helps.
    about = calibrated.card[CARD]
    found = f"temperature {about.get('left out', calibrated.temperature):.3f}, fitted on {about['rows']:,} rows"
    if left_out := about.get(fitting.LEFT_OUT_CARD):
        say(f"{counted(left_out, 'row')} left out, which the model has learned from")
    if unmatched := unmatched_line(about.get(fitting.UNMATCHED_CARD, ())):
        say(unmatched)
    say(f"{output}: scores stay as they were: {found}, does not help" if "left out" in about else f"{output}: {found}")
    say("on rows that it was not fitted to, a fifth at a time:")
    _say_figures(about)
    if by_class:
        helps = "" if calibrated.by_class else ", which does not help: they stay as they were"
        say(f"scores by class{helps}; on rows that they were not fitted to:")
        _say_figures(calibrated.card[BY_CLASS], "with the temperature alone", "by class too")
    if calibrated.cascade is not None:
        from ..report.tables import print_asking

        print_asking({name: calibrated.card[cascade.CARD][name] for name in cascade.ASKS}, PlainConsole())


def _say_figures(about: dict[str, Any], before: str = "before", after: str = "after") -> None:
    for name in ("calibration error", "log loss"):
        say(f"{name:>20}  {about[f'{name} before']:.4f} {before}, {about[f'{name} after']:.4f} {after}")


def convert(
    given: Annotated[str, typer.Argument(metavar="FROM", help=_FROM, show_default=False)],
    target: Annotated[Path, typer.Argument(metavar="TO", help="The .safetensors, .bin or .onnx file to write.")],
    classes: Annotated[str | None, typer.Option(metavar="A,B,…", help=_CLASSES)] = None,
    alphabet: Annotated[str | None, typer.Option(metavar="SYMBOLS", help=_ALPHABET)] = None,
    preparation: Annotated[str | None, typer.Option(metavar="RECIPE", help=_PREPARATION)] = None,
    join: Annotated[str | None, typer.Option(metavar="TEMPLATE", help=_JOIN)] = None,
    overwrite: Overwrite = False,
) -> None:
    """Convert a model to another format: safetensors, ONNX, or a params.bin (tensors as flat fp32).

    A .safetensors file may also store, with --preparation, what is done to each text before the model reads it
    (`broadsheet recipes` lists what published models need), and with --join the template by which every command makes
    a text of several columns.

    A params.bin has no place for class names, alphabet, frame and card. The command writes them to a file next to it,
    params.bin.json.

    The graph of an ONNX file takes `ids`, uint8 [N, length], which `broadsheet.onnx_inputs` makes of texts, and returns
    `scores`. The command compares these with its own on 1,000 texts.
    """
    if target.suffix == ".onnx":
        _export(given, target, overwrite)
        return

    # Refuse options that the target cannot store, and files that would be replaced.
    source = Path(given)
    from ..model import encoder_file, fasttext_file, model_file
    from ..model.charcnn import Model
    from ..model.loading import load_model
    from ..model.recipes import prepared
    from ..model.scores import CARD
    from ..model.several import load_one
    from ..source.rows.join import joined_columns

    for flag, given_for in (("--preparation", preparation), ("--join", join)):
        if given_for is not None and target.suffix != ".safetensors":
            raise UsageError(f"{flag} is kept in a .safetensors file: give TO that suffix")
    kinds = source.suffix, target.suffix
    beside = model_file.sidecar_path(target) if target.suffix == ".bin" else None
    refuse_outputs({"TO": target, "its sidecar": beside}, overwrite, lambda: [str(source), f"{source}.json"])

    # Read the model in its own format, and make the content of each target file.
    try:
        is_whole = given.startswith(model_file.HUB) or encoder_file.is_folder(source)
        if target.suffix == ".safetensors" and (is_whole or fasttext_file.is_fasttext(source)):
            if classes is not None or alphabet is not None:
                raise UsageError(f"--classes and --alphabet are for a params.bin; {given} has its own")
            files = {target: load_model(given).to_bytes()}
        elif (preparation or join) is not None and source.suffix == ".safetensors":
            files = {target: source.read_bytes()}
        elif kinds == (".bin", ".safetensors"):
            files = {target: _model_of(source, classes, alphabet).to_bytes()}
        elif kinds == (".safetensors", ".bin"):
            if classes is not None or alphabet is not None:
                raise UsageError("--classes and --alphabet are for a params.bin; a .safetensors model has its own")
            model = load_one(source)
            if model.is_multi_label or model.preparation is not None:
                raise UsageError(f"{source} gives several labels or prepares its texts: a params.bin cannot hold that")
            data = to_params(model)
            card = {name: about for name, about in model.card.items() if name != CARD or model.temperature == 1}
            sidecar = model_file.sidecar_json(model.alphabet.symbols, list(model.classes), model.frame, card, data)
            files = {target: data, model_file.sidecar_path(target): sidecar}
        else:
            known = "one must be a .safetensors, the other a .bin or an .onnx"
            raise UsageError(f"cannot convert {source} to {target}: {known}")
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {cause(error)}") from error
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from error

    # Add preparation and template, and write the files.
    if preparation is not None:
        files = {target: prepared(Model.from_bytes(files[target], given), preparation).to_bytes()}
    if join is not None:
        files = {target: Model.from_bytes(files[target], given).joining(joined_columns(join)[1]).to_bytes()}
    for path, content in files.items():
        write_file(path, content)
        say(f"{path}: {len(content):,} bytes")

    # Say what a params.bin does not hold.
    if kinds[1] == ".bin" and model.scales is not None:
        say("A params.bin has no activation scales, for --precision int8: broadsheet calibrate --int8 finds them again")
    if kinds[1] == ".bin" and (model.temperature != 1 or model.by_class is not None):
        say("A params.bin has no temperature: labels stay, scores differ; broadsheet calibrate finds it again")
    if kinds[1] == ".bin" and model.ngrams is not None:
        say("A params.bin has no n-grams: the network alone gives other scores, and labels fewer texts right")
    if kinds[1] == ".bin" and model.frame == "text":
        say(
            f"The model has the text frame, which only {model_file.sidecar_path(target).name} records: keep the two "
            f"together. Without it, and by any other program, {target.name} is read with the dense frame, and "
            "labels differ"
        )


def recipes() -> None:
    """List how published models prepare texts: the source, licence, labels, steps and threshold of each recipe.

    `broadsheet convert MODEL OUT.safetensors --preparation NAME` stores a recipe in the model's file.
    `broadsheet classify --model MODEL --preparation NAME` uses it once.
    """
    from textwrap import fill

    from ..model import preparation, recipes

    for recipe in recipes.recipes().values():
        steps = msgspec.convert(recipe["steps"], preparation.Steps) if recipe["steps"] else ()
        say(recipe["name"])
        for name in ("model", "source", "licence", "labels", "join", "steps", "windows", "threshold", "refused"):
            if about := "; ".join(map(str, steps)) if name == "steps" else recipe.get(name):
                say(fill(about, 80, initial_indent=f"{name:>12}  ", subsequent_indent=" " * 14))


def _export(model: str, target: Path, overwrite: bool) -> None:
    from ..ecosystem.onnx import export_onnx
    from ..model.loading import load_model

    refuse_outputs({"TO": target}, overwrite, lambda: [model])
    loaded = load_model(model)
    difference = export_onnx(loaded, target)
    size = target.stat().st_size
    say(f"{target}: {size:,} bytes; on 1,000 texts, scores differ from ours by at most {difference:.1g}")
    if loaded.scales is not None:
        say("The ONNX file computes in fp32, without the activation scales of --precision int8")


def push(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A shipped model's name, or a file.")],
    repository: Annotated[str, typer.Argument(metavar="USER/NAME", help="The repository on the Hub; created if new.")],
    private: Annotated[bool, typer.Option("--private", help="Make the repository private, if it is new.")] = False,
    message: Annotated[str, typer.Option(metavar="TEXT", help="Commit message.")] = "A model",
) -> None:
    """Upload a model to the Hugging Face Hub, with a model card.

    Log in with `hf auth login` first. Afterwards every command takes hf://USER/NAME as a model.
    """
    from ..ecosystem import push as hub

    say(hub.push(model, repository, private=private, message=message))


def to_params(model: Model) -> bytes:
    """Return a model as a params.bin, which lacks alphabet, class names and frame. The file next to it stores these.

    Raises ModelError for a model without a network, or with another length than the published one.
    """
    from ..model.layers import PUBLISHED_LENGTH

    if not model.has_network:
        raise ModelError(f"params.bin holds a character-level network, and {model.name} has none")
    if model.length != PUBLISHED_LENGTH:
        raise ModelError(f"params.bin holds length {PUBLISHED_LENGTH} only, this model has {model.length}")
    order = [name for layer in model.layers for name in layer.shapes]
    return b"".join(model.tensors[name].astype("<f4").tobytes() for name in order)


def _model_of(params: Path, classes: str | None, alphabet: str | None) -> Model:
    """Return the model of a params.bin. Classes and alphabet of the options precede those of the file next to it."""
    from ..model import model_file
    from ..model.alphabet import PUBLISHED
    from ..model.params_file import from_params

    data = model_file.read_model_file(params)
    sidecar = model_file.read_sidecar(params, data)
    names, symbols, card = (sidecar.classes, sidecar.alphabet, sidecar.card) if sidecar else (None, PUBLISHED, None)
    names = names if classes is None else classes.split(",")
    return from_params(data, names, alphabet or symbols, str(params), card, sidecar.frame if sidecar else "dense")
