"""The model card: README.md of a student's folder, in the form that Hugging Face reads."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from potstill.measuring.measurements import BASELINE, STUDENT, Measurements, clean
from potstill.reporting.deployed import deployed_sentence
from potstill.reporting.hub_metadata import front_matter, task_words
from potstill.reporting.knowledge import knowledge_of_run
from potstill.reporting.numbers import count, metric_title, percent
from potstill.reporting.sentences import caveats, headline, signatures, verdicts
from potstill.reporting.tables import Cell, summary

CALIBRATED = (
    "Its probabilities are calibrated by a temperature that was fitted on dev, `potstill_temperature` in `config.json`. "
    "`potstill predict` reads it; a plain `pipeline` does not, and is as sure as the network was before: "
    "the calibrated probabilities are `softmax(logits / model.config.potstill_temperature)` "
    "(`sigmoid` for several labels). No prediction changes by it."
)


def model_card(measurements: Measurements, recipe_toml: str, model: str = STUDENT) -> str:
    """Return the card of a model of a run: front matter, use, figures, recipe, limits."""
    if model not in measurements.models:
        model = BASELINE if BASELINE in measurements.models else next(iter(measurements.models), model)
    recipe = parse_recipe(recipe_toml)
    sections = [
        front_matter(measurements, recipe, model),
        introduction(measurements, model),
        usage(measurements, recipe),
        results(measurements),
        *knowledge(measurements),
        recipe_section(recipe_toml),
        limits(measurements, model),
    ]
    return "\n\n".join(sections) + "\n"


def parse_recipe(recipe_toml: str) -> dict[str, Any]:
    try:
        return tomllib.loads(recipe_toml)
    except tomllib.TOMLDecodeError:
        return {}


def introduction(measurements: Measurements, model: str) -> str:
    sentences = [*headline(measurements, model), *(verdicts(measurements) if model == STUDENT else [])]
    if (seeds := len(measurements.seeds)) > 1:
        sentences.append(
            f"Scores are means of {seeds} seeds, ± one standard deviation; the weights are those of one seed."
        )
    classes = [f"{safe(data)}: {names}" for data in measurements.data_sets if (names := class_list(measurements, data))]
    paragraphs = [
        f"# {safe(measurements.name or 'student')}",
        f"{'A student, distilled' if model.startswith(STUDENT) else 'A model, fine-tuned'} with potstill.",
        " ".join(map(safe, sentences)),
        f"Classes: {'; '.join(classes)}." if classes else "",
    ]
    return "\n\n".join(filter(None, paragraphs))


def class_list(measurements: Measurements, data: str) -> str:
    labels = measurements.labels.get(data, [])
    return ", ".join(map(safe, labels)) if task_words(measurements).named_outputs and len(labels) > 1 else ""


def usage(measurements: Measurements, recipe: Mapping[str, Any]) -> str:
    """Return the call whose predictions were measured."""
    words = task_words(measurements)
    code, note = words.code, words.note
    if measurements.needs_potstill and code.startswith("from transformers"):
        code = f"import potstill  # registers this network\n{code}"
    data = recipe.get("data")
    tables = [table for table in (data if isinstance(data, list) else [data]) if isinstance(table, dict)]
    languages = [
        table["language"] for table in tables if re.fullmatch(r"[\w-]{1,20}", str(table.get("language") or ""))
    ]
    if languages:
        code = code.replace("A text to be", f">>{languages[0]}<< A text to be")
        tokens = ", ".join(f"`>>{language}<<`" for language in languages)
        note += (
            f" Every text starts with the token of its target language, {tokens}; "
            f"`potstill translate --language {languages[0]}` adds it."
        )
    if any(model.temperature for name, model in measurements.models.items() if name == measurements.student_name):
        note += f" {CALIBRATED}"
    if sentence := deployed_sentence(measurements):
        note += f"\n\nThe folder `deployed` beside this one holds the student for ONNX Runtime: {safe(sentence)}."
    return f"## Use\n\n```python\n{code}\n```\n\n{note}"


def results(measurements: Measurements) -> str:
    """Return the table of all models: a score means little without those of teacher and baseline."""
    table = summary(measurements, with_dev=False)
    head = [safe(title) for title in table.head]
    rows = [head, ["---"] + ["---:"] * (len(head) - 1), *([_text(cell) for cell in row] for row in table.rows)]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    words = ", ".join(f"`{signature.replace('`', '')}`" for signature in signatures(measurements))
    introduced = (
        "Scores in percent (except errors such as perplexity), with the 95 % interval in brackets. "
        "`fine-tuned` is the same student trained on labels alone."
    )
    return "\n".join(
        ["## Figures", "", introduced, "", *lines, *(["", f"Scored by sacrebleu: {words}"] if words else [])]
    )


def _text(cell: Cell) -> str:
    return safe(f"{cell.text} ({cell.interval})" if cell.interval else cell.text)


def knowledge(measurements: Measurements) -> list[str]:
    """Return the section on the teacher, if there is anything to say."""
    sentences = " ".join(map(safe, knowledge_of_run(measurements)))
    return [f"## What its teacher knew\n\n{sentences}"] if sentences else []


def recipe_section(recipe_toml: str) -> str:
    """Return the whole recipe, in a fence of more backticks than it contains."""
    lines = "\n".join(clean(line) for line in recipe_toml.strip().splitlines())
    longest = max((len(ticks) for ticks in re.findall(r"`+", lines)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"## How it was made\n\n{fence}toml\n{lines}\n{fence}"


def limits(measurements: Measurements, model: str) -> str:
    """Return what the figures do not say."""
    sentences = [
        "It was trained and measured on the data of the recipe. On other texts it may be worse; nothing here measures that."
    ]
    measured = measurements.models.get(model)
    for place in measurements.quoted() if measured else ():
        scores, data = measured.scores(place.data, place.split), safe(place.data)  # type: ignore[union-attr]
        if rows := scores.get("rows"):
            metric = safe(metric_title(place.metric))
            sentences.append(f"{data}: {metric} on {safe(place.split)} was measured on {count(rows)} labelled rows.")
        if (error := scores.get("calibration_error")) is not None:
            before = scores.get("calibration_error_before")
            without = "" if before is None else f"; without its temperature by {percent(before)}"
            sentences.append(
                f"{data}: its probabilities are off by {percent(error)} points on average (calibration error){without}."
            )
    if len(measurements.seeds) < 2:
        sentences.append("It was trained with one seed: another seed gives other weights and other scores.")
    if model.startswith(STUDENT):
        sentences.append("It may have learned errors and biases of its teacher.")
    if measurements.device is not None:
        sentences.append(f"Times were measured on one machine ({safe(measurements.device)}); on others they differ.")
    sentences += map(safe, caveats(measurements))
    if measurements.too_busy:
        sentences.append(f"Speeds cannot be trusted: {safe(measurements.too_busy)}.")
    return "\n".join(["## Limits", "", *(f"- {sentence}" for sentence in sentences)])


def safe(text: object) -> str:
    """Return text as Markdown shows it: without markup, HTML, or a new cell or line."""
    escaped = clean(text, 400).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"[`|\[\]*_~\\!#{}$]", lambda match: f"&#{ord(match[0])};", escaped)
