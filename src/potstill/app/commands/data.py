"""The command that augments rows. Its libraries are imported after the input is checked."""

from __future__ import annotations

from typing import Annotated

import typer

from potstill.app import options
from potstill.app.inputs import check_rows
from potstill.recipe import plugins
from potstill.system.display import Display
from potstill.system.terminal import say


def augment(
    file: Annotated[str, typer.Argument(help="Rows of one text or a pair, in any format that --train takes.")],
    out: Annotated[str, typer.Option(help="The new file: .csv .tsv .jsonl (also .gz).")],
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the random changes.")] = 0,
    copies: Annotated[
        int | None, typer.Option(help="Copies of each row at most. Default: 20, or 10 for pairs.")
    ] = None,
    ngram: Annotated[
        str | None,
        typer.Option(help="keep: some copies are only an n-gram; mask: the n-gram is masked.", metavar="keep|mask"),
    ] = None,
    with_: Annotated[list[str] | None, options.plugin_option("data maker", "p_mask=0.2")] = None,
    text: options.Text = None,
    pair: options.Pair = None,
    label: options.Label = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier file.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Write the rows, followed by copies with masked and replaced words, and n-grams of them.

    potstill augment train.csv --out augmented.csv --seed 0 --copies 20
    """
    flags = {"draw": seed, "copies": copies, "ngram": ngram}
    fields = options.plugin_fields(with_) | {name: value for name, value in flags.items() if value is not None}
    maker = plugins.make("data", "augmented", fields)
    check_rows(file)
    from potstill.data.augment.files import augment_file
    from potstill.data.making import MakeContext

    context = MakeContext(seed, show=Display(quiet))
    rows, copied = augment_file(
        file,
        out,
        lambda examples: maker.make(examples, context),
        options.columns(text, pair, label),
        maker.labels != "dropped",
        overwrite,
    )
    if not quiet:
        say(f"{out}: {rows} rows and {copied} copies")
