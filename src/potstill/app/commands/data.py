"""Commands on rows. Each is a thin coat over a function; numpy and torch are imported only where they are used."""

from __future__ import annotations

from typing import Annotated

import typer

from potstill.app import options
from potstill.system.terminal import say


def augment(
    file: Annotated[str, typer.Argument(help="Rows of one text or a pair: any format that --train takes.")],
    out: Annotated[str, typer.Option(help="The new file: .csv .tsv .jsonl (also .gz).")],
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Decides what is drawn.")] = 0,
    copies: Annotated[int | None, typer.Option(help="Of each row at most. Default: 20, of a pair 10.")] = None,
    ngram: Annotated[
        str | None,
        typer.Option(help="keep: sometimes only an n-gram is kept; mask: it is masked.", metavar="keep|mask"),
    ] = None,
    with_: Annotated[
        list[str] | None,
        typer.Option("--with", help="A field of the data maker: --with p_mask=0.2.", metavar="FIELD=VALUE"),
    ] = None,
    text: options.Text = None,
    pair: options.Pair = None,
    label: options.Label = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier file.")] = False,
    quiet: options.Quiet = False,
) -> None:
    """Write the rows and, behind them, copies with masked and replaced words and n-grams of them.

    potstill augment train.csv --out augmented.csv --seed 0 --copies 20
    """
    from potstill.data.rows import Columns
    from potstill.recipe import plugins

    given = {"copies": copies, "ngram": ngram}
    fields = {**options.fields_of(with_ or []), "draw": seed, **{k: v for k, v in given.items() if v is not None}}
    maker = plugins.make("data", "augmented", fields)
    from potstill.data.augment.files import augment_file
    from potstill.data.making import Context
    from potstill.system.display import Display

    context = Context(seed, show=Display(quiet))
    columns = Columns(text, pair, options.columns_of(label))
    keep_labels = maker.labels != "dropped"
    rows, made = augment_file(
        file, out, lambda examples: maker.make(examples, context), columns, keep_labels, overwrite
    )
    if not quiet:
        say(f"{out}: {rows} rows and {made} copies")
