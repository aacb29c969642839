"""What can be turned off, the order in which it is turned on, and what was predicted before the measurements.

The parent program documents 29 measured steps. About a dozen switches replace them here, each of which can really be
turned off. Predictions are for an NVIDIA H200. A wrong prediction is not corrected.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

GENERATIONS = ("simt", "sm80", "sm90")


@dataclass(frozen=True)
class Setting:
    """A variant of the product. The default is the product itself.

    Attributes
    ----------
    batches : bool
        Whether to launch full batches, or one article at a time.
    text : bool
        Whether to send text to the GPU, or one-hot fp32.
    channels_last : bool
        Whether activations stay channels-last, or are transposed to channels-first and back after each layer.
    fused : bool
        Whether the products compute bias, ReLU and pool, or kernels of their own.
    table : bool
        Whether block 1 is a look-up, or a product.
    generation : str
        The kernel generation.
    reached : bool
        Whether to compute only rows that a text reaches, or all rows of the frame. Without `channels_last`, `fused` or
        `table`, all rows are always computed.
    large_chunks : bool
        Whether a call of the engine labels 131,072 articles, or 512.
    page_locked : bool
        Whether the staging memory is page-locked.
    streams : bool
        Whether there are three streams, or one for copies and kernels.
    eight_bits : bool
        Whether to compute blocks 2 to 6 in int8, which a user has to ask for.

    """

    batches: bool = True
    text: bool = True
    channels_last: bool = True
    fused: bool = True
    table: bool = True
    generation: str = "sm90"
    reached: bool = True
    large_chunks: bool = True
    page_locked: bool = True
    streams: bool = True
    eight_bits: bool = False

    @property
    def has_product_kernels(self) -> bool:
        """Whether the variant launches only the product's kernels."""
        return self.text and self.channels_last and self.fused and self.table

    @property
    def precision(self) -> str:
        """The precision of the variant's engine."""
        return "fp32" if self.generation == "simt" else "int8" if self.eight_bits else "fp16"


PRODUCT = Setting()
NOTHING = Setting(False, False, False, False, False, "simt", False, False, False, False)
_WHOLE = ("channels_last", "fused", "table")
"""The fields without which all rows of the frame are computed."""


@dataclass(frozen=True)
class Predicted:
    """A prediction, with its reason.

    `value` is the factor by which the product gets slower, or the articles per second on a rung.
    """

    value: float
    reason: str


@dataclass(frozen=True)
class Switch:
    """Something that can be turned off.

    Attributes
    ----------
    name : str
        The name.
    without : str
        The name of what replaces it when it is turned off.
    field : str
        Its field of `Setting`.
    alone : Predicted
        The prediction for the product with only this turned off.
    rung : Predicted
        The prediction for the ladder after this is turned on.
    values : tuple
        The values of the field, turned off and on.
    parent : str or None
        The parent program's figure for the same thing, if one is known.

    """

    name: str
    without: str
    field: str
    alone: Predicted
    rung: Predicted
    values: tuple[bool, bool] | tuple[str, str] = (False, True)
    parent: str | None = None

    def off(self, setting: Setting) -> Setting:
        """Return a setting with this turned off."""
        whole = {"reached": False} if self.field in _WHOLE else {}
        return replace(setting, **{self.field: self.values[0], **whole})

    def on(self, setting: Setting) -> Setting:
        """Return a setting with this turned on."""
        return replace(setting, **{self.field: self.values[1]})


PARENT_ONE_GPU = "3,235 articles/s: the whole parent program on one H200, 8,192 articles in 2.53 s"
PARENT_INPUT = "2.3 GB of one-hot input for 8,192 articles; on 16 GPUs it was bound by sending that"

BOTTOM = Predicted(700, "about 25 launches an article, most on a few of 132 processors: 1.4 ms, fc1 half of it")

SWITCHES = (
    Switch("full batches", "one article a launch", "batches",
           Predicted(1_600, "14 launches and 8 copies from Python an article take 450 µs, against 0.28 µs in a batch"),
           Predicted(17_000, "27 µs of fp32 products, 4 µs of element-wise traffic, 28 µs of one-hot over the bus")),
    Switch("text is shipped", "one-hot fp32 shipped instead of text", "text",
           Predicted(19, "284 KB an article at 55 GB/s is 5.2 µs, and the bus is never idle"),
           Predicted(32_000, "the 28 µs of one-hot fall away, text is a thousandth of it"),
           parent=PARENT_INPUT),
    Switch("channels last", "activations channels-first", "channels_last",
           Predicted(5.2, "the whole frame, 3.1 times, and 1.6 MB more an article through device memory at 2.5 TB/s"),
           Predicted(34_000, "3.3 MB of transpositions in fp32 are 1.3 of 31 µs")),
    Switch("fusion", "bias, ReLU and pool as kernels of their own", "fused",
           Predicted(5.2, "the whole frame, 3.1 times, and 2.3 MB more an article through device memory at 4 TB/s"),
           Predicted(36_000, "10 MB of element-wise traffic in fp32, mostly block 1's, are 2.5 of 29 µs")),
    Switch("block 1 as a look-up", "block 1 as a dense product", "table",
           Predicted(8.3, "the whole frame, 3.1 times; 462 MFLOP at 650 TFLOP/s; 516 KB an article written and read"),
           Predicted(64_000, "half of the multiplications fall away (128 of 950 MFLOP were padding)")),
    Switch("tensor cores (sm80)", "simt: fp32 on CUDA cores", "generation",
           Predicted(17, "an earlier run had 213 k articles/s for simt and 3.6 M for sm90"),
           Predicted(370_000, "1.9 µs of kernels and 0.4 ms of waiting a chunk of 512"),
           values=("simt", "sm80")),
    Switch("wgmma and TMA (sm90)", "sm80: mma.sync and cp.async", "generation",
           Predicted(2.2, "an earlier run had 1.63 M articles/s for sm80 and 3.6 M for sm90"),
           Predicted(550_000, "the kernels are twice as fast, the waiting stays"),
           values=("sm80", "sm90")),
    Switch("rows that a text reaches", "all rows of the frame", "reached",
           Predicted(3.1, "block 2 to 6 compute four times the rows; fc1 and the norms' outputs stay"),
           Predicted(800_000, "the kernels take a third of the time, the waiting of small chunks stays")),
    Switch("large chunks", "chunks of 512", "large_chunks",
           Predicted(4.5, "0.5 ms of launches and waiting beside 0.14 ms of kernels, and tiles that fill no wave"),
           Predicted(3_000_000, "full batches, but each waits for the host's copies: 1.5 ms beside 8.5 ms")),
    Switch("page-locked memory", "pageable staging memory", "page_locked",
           Predicted(1.1, "a copy out waits for its batch, so the host prepares nothing meanwhile"),
           Predicted(3_400_000, "the host runs ahead again; 250 µs of copies a batch of 8.5 ms are not hidden yet")),
    Switch("three streams", "one stream", "streams",
           Predicted(1.03, "200 µs in and 40 µs out a batch of 8.5 ms stand between the kernels"),
           Predicted(3_600_000, "an earlier run's figure end to end")),
)  # fmt: skip

EIGHT_BITS = Predicted(0.75, "an earlier run had 4.92 M articles/s for int8 and 3.67 M for fp16: a quarter faster")


WITH_NGRAMS = (
    ("n-grams beside the network", "all", Predicted(3_450_000, "12 ns of 272 are the n-grams'")),
    ("the network where it is needed", "uncertain",
     Predicted(12_000_000, "a sixth of the network's 258 ns, and the n-grams, the copies and the launches as before")),
)  # fmt: skip
"""The last rungs, with the whole shipped model.

The other rungs have only its network, since one-hot columns hold no text for n-grams.
"""


@dataclass(frozen=True)
class Step:
    """One measurement.

    Attributes
    ----------
    kind : str
        "product", "alone" or "cumulative".
    name : str
        The name in the results.
    setting : Setting
        The variant.
    predicted : Predicted or None
        The prediction: a factor for "alone", articles per second for "cumulative".
    parent : str or None
        The parent program's figure, if one is known.
    network : str or None
        The texts that the network of the whole shipped model scores, as in `Model.asking`; None for the network alone.

    """

    kind: str
    name: str
    setting: Setting
    predicted: Predicted | None
    parent: str | None = None
    network: str | None = None


def steps(best: str) -> list[Step]:
    """Return the steps in the order of measuring, for a GPU whose best kernel generation is `best`."""
    usable = GENERATIONS[: GENERATIONS.index(best) + 1]
    product = replace(PRODUCT, generation=best)
    switches = [s for s in SWITCHES if s.on(product).generation in usable]
    listed = [Step("product", "the product", product, None)]
    at = NOTHING
    listed.append(Step("cumulative", "everything off", at, BOTTOM, PARENT_ONE_GPU))
    for switch in switches:
        at = switch.on(at)
        listed.append(Step("cumulative", f"+ {switch.name}", at, switch.rung))
    for name, network, predicted in WITH_NGRAMS:
        listed.append(Step("cumulative", f"+ {name}", product, predicted, network=network))
    listed += [Step("alone", s.without, s.off(product), s.alone, s.parent) for s in switches]
    if best != "simt":
        listed.append(Step("alone", "int8 instead of fp16", replace(product, eight_bits=True), EIGHT_BITS))
    return listed
