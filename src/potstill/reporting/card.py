"""A model card: the README.md of a student's folder, in the form that Hugging Face reads."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from potstill.measuring.measurements import (
    clean,
    data_sets,
    inside,
    interval,
    metrics_of,
    number,
    quoted,
    quoted_splits,
    searches,
    seeds_of,
    signatures,
    within,
)
from potstill.reporting.numbers import count, in_its_unit, megabytes, parameters, percent, score, short, titled
from potstill.reporting.sentences import caveats, headline, verdicts

# what Hugging Face calls our metrics
THEIR_METRIC = {
    "matthews": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "f1_micro": "f1",
    "f1_macro": "f1",
    "exact": "accuracy",
    "bleu_beam": "bleu",
}
# those that it knows: any other name would lead its readers nowhere
HUB_METRICS = {"accuracy", "bleu", "chrf", "f1", "matthews_correlation", "pearsonr", "perplexity"}
HUB_METRICS |= {"precision", "recall", "spearmanr"}
TO_A_HUNDRED = ("bleu", "bleu_beam", "chrf")  # as its readers expect them
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def their_metric(metric: str) -> str:
    """Of two classes F1 is that of the named one, "f1 of defect"."""
    return "f1" if metric.startswith("f1 of ") else THEIR_METRIC.get(metric, metric)


def model_card(measurements: dict[str, Any], recipe_toml: str, model: str = "distilled") -> str:
    """The card of one of a run's models: front matter, use, figures, how it was made, limits."""
    models = within(measurements, "models")
    if model not in models:
        model = "fine-tuned" if "fine-tuned" in models else next(iter(models), model)
    recipe = parsed(recipe_toml)
    sections = [
        front_matter(measurements, recipe, model),
        what_it_is(measurements, model),
        how_to_use(measurements, recipe),
        figures(measurements),
        how_it_was_made(recipe_toml),
        limits(measurements, model),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


HUB_TASKS = {"tag": "token-classification", "answer": "question-answering", "choose": "multiple-choice"}
HUB_TASKS |= {"pixels": "image-classification", "translate": "translation", "write": "text-generation"}
USES = {  # task: code, and what to know of it
    "tag": (
        """from transformers import pipeline

tag = pipeline("token-classification", model="path/to/this/folder", aggregation_strategy="first")
tag("A text with names in it .")""",
        "It was measured on words that were split beforehand, each read at its first piece; `first` does the same.",
    ),
    "answer": (
        """from potstill import predict

for answer in predict("path/to/this/folder", [("a question ?", "A long context with the answer in it .")]):
    print(answer["answer"], answer["probability"])""",
        "`AutoModelForQuestionAnswering` loads it too; then windows and the best span are left to you.",
    ),
    "choose": (
        """from potstill import predict

asked = {"text": "A passage .", "question": "it was _ .", "choices": ["wet", "dry"]}
print(next(predict("path/to/this/folder", [asked]))["candidate"])""",
        "`AutoModelForMultipleChoice` loads it too: give (question, candidates, tokens).",
    ),
    "translate": (
        """from potstill import translate

for text in translate("path/to/this/folder", ["A text to be translated ."], beam=5):
    print(text)""",
        "`potstill translate` does the same for files. `generate` of transformers works too; load the model by "
        "`AutoModelForSeq2SeqLM`, where it is one of potstill's own after `import potstill`.",
    ),
    "write": (
        """from transformers import pipeline

write = pipeline("text-generation", model="path/to/this/folder")
write("A text that begins")""",
        "How probable it holds texts was measured, not what it writes by itself.",
    ),
    "pixels": (
        """from potstill import predict

for answer in predict("path/to/this/folder", images):  # arrays of pixels from 0 to 255
    print(answer["label"], answer["probability"])""",
        "After `import potstill`, `AutoModelForImageClassification` loads it too: give pixels from 0 to 1.",
    ),
}


def parsed(recipe_toml: str) -> dict[str, Any]:
    try:
        return tomllib.loads(recipe_toml)
    except tomllib.TOMLDecodeError:
        return {}


def front_matter(found: dict[str, Any], recipe: dict[str, Any], model: str) -> str:
    """YAML whose values are all JSON, which is YAML too and cannot be broken out of."""
    base = base_model(recipe)
    tags = ["potstill", "knowledge-distillation"] if model.startswith("distilled") else ["potstill"]
    values: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": hub_task(found),
        "tags": tags,
        **({"base_model": base} if base else {}),
        "metrics": list(
            dict.fromkeys(
                theirs
                for data in data_sets(found)
                for metric in metrics_of(found, data)
                if (theirs := their_metric(metric)) in HUB_METRICS
            )
        ),
    }
    if results := model_index(found, model):
        values["model-index"] = [{"name": clean(found.get("name") or "student"), "results": results}]
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items() if value]
    return "\n".join(["---", *lines, "---"])


def hub_task(found: Mapping[str, Any]) -> str:
    """What the hub calls the task; a run's data sets have one and the same."""
    return next((HUB_TASKS[one] for one in task_names(found) if one in HUB_TASKS), "text-classification")


def task_names(found: Mapping[str, Any]) -> set[str]:
    """Of the tasks, and of the forms of rows where these tell more: a class is told of texts and of images."""
    return {str(one) for key in ("tasks", "forms") for one in within(found, key).values()}


def base_model(recipe: Mapping[str, Any]) -> str | None:
    """Where the weights came from, if that is a name on the hub. Where its owner is also a folder here, it is a path."""
    name = recipe.get("start") or recipe.get("teacher")
    if not isinstance(name, str) or not HUB_NAME.fullmatch(name) or Path(name).parent.exists():
        return None
    return name


def model_index(found: dict[str, Any], model: str) -> list[dict[str, Any]]:
    """Every score on what is quoted, as fractions; BLEU and chrF from 0 to 100."""
    results = []
    for data in data_sets(found):
        for split in quoted_splits(found, data):
            scores = [
                {
                    "type": clean(their_metric(metric)),
                    "name": titled(metric),
                    "value": 100 * value if metric in TO_A_HUNDRED else value,
                }
                for metric in metrics_of(found, data)
                if (value := number(inside(found, "models", model, "quality", data, split, metric))) is not None
            ]
            if scores:
                name = clean(data)
                results.append(
                    {
                        "task": {"type": hub_task(found)},
                        "dataset": {"name": name, "type": name, "split": clean(split)},
                        "metrics": scores,
                    }
                )
    return results


def what_it_is(found: dict[str, Any], model: str) -> str:
    sentences = [*headline(found, model), *(verdicts(found) if model == "distilled" else [])]
    seeds = len(seeds_of(found))
    if seeds > 1:
        sentences.append(
            f"Scores are means of {seeds} seeds, ± one standard deviation; these weights are of one of them."
        )
    kind = "A student, distilled" if model.startswith("distilled") else "A model, fine-tuned"
    labels = [f"{safe(data)}: {listed}" for data in data_sets(found) if (listed := label_list(found, data))]
    told = [f"# {safe(found.get('name') or 'student')}", f"{kind} with potstill."]
    told += [" ".join(safe(sentence) for sentence in sentences)] if sentences else []
    told += ["Classes: " + "; ".join(labels) + "."] if labels else []
    return "\n\n".join(told)


def label_list(found: dict[str, Any], data: str) -> str:
    labels = inside(found, "labels", data) if inside(found, "tasks", data) not in ("answer", "choose") else None
    return ", ".join(safe(label) for label in labels) if isinstance(labels, list) and len(labels) > 1 else ""


def how_to_use(found: dict[str, Any], recipe: dict[str, Any]) -> str:
    """The call that gives what was measured."""
    names = task_names(found)
    lines = next((USES[one] for one in USES if one in names), None)
    if lines is None:  # values need no softmax, and label sets need all labels
        more = ', function_to_apply="none"' if "regress" in names else ", top_k=None" if "multilabel" in names else ""
        call = f'classify = pipeline("text-classification", model="path/to/this/folder"{more})'
        note = 'A pair of texts is given as `{"text": …, "text_pair": …}`.'
        begin = "import potstill  # knows this network\n" if found.get("needs_potstill") else ""
        lines = (f'{begin}from transformers import pipeline\n\n{call}\nclassify("a text")', note)
    code, note = lines
    data = recipe.get("data")
    every = [one.get("language") for one in (data if isinstance(data, list) else [data]) if isinstance(one, dict)]
    if asked := [one for one in every if re.fullmatch(r"[\w-]{1,20}", str(one or ""))]:
        code = code.replace("A text to be", f">>{asked[0]}<< A text to be")
        told = ", ".join(f"`>>{one}<<`" for one in asked)
        note += f" Every text begins with what asks for its language, {told}; `potstill translate --language {asked[0]}` puts it there."
    return f"## Use\n\n```python\n{code}\n```\n\n{note}"


def figures(found: dict[str, Any]) -> str:
    """A row per model, the teacher's and the baseline's too: a score alone says little."""
    places = [
        (data, split, metric)
        for data in data_sets(found)
        for split in quoted_splits(found, data)
        for metric in metrics_of(found, data)[:2]
    ]
    several = len(data_sets(found)) > 1
    head = [
        "",
        *(
            f"{safe(data) + ' ' if several else ''}{safe(split)} {safe(titled(metric))}"
            for data, split, metric in places
        ),
    ]
    head += ["same as teacher", "parameters", "MB", "ms for one", "times faster"]
    rows = []
    for name, model in within(found, "models").items():
        agreed = inside(model, "quality", *quoted(found)[0][:2], "agreement") if quoted(found) else None
        times = (inside(model, "speed", one, "latency_ms") for one in ("pytorch", "onnx", *searches({name: model})))
        rows.append(
            [
                safe(name),
                *(_with_interval(model, *place) for place in places),
                percent(agreed),
                parameters(inside(model, "parameters")),
                megabytes(inside(model, "bytes")),
                short(next((time for time in times if number(time) is not None), None)),
                short(inside(model, "times_faster")),
            ]
        )
    lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] + ["---:"] * (len(head) - 1), *rows]]
    told = ", ".join(f"`{one.replace('`', '')}`" for one in signatures(found))
    counted = ["", f"Counted by sacrebleu: {told}"] if told else []
    return "\n".join(
        [
            "## Figures",
            "",
            "Scores in percent (perplexity is none), with the 95 % interval in brackets where there is one. "
            "`fine-tuned` is the same student on labels alone.",
            "",
            *lines,
            *counted,
        ]
    )


def _with_interval(model: Any, data: str, split: str, metric: str) -> str:
    ends = interval(model, data, split, metric)
    told = score(model, data, split, metric)
    return f"{told} ({in_its_unit(metric)(ends[0])} to {in_its_unit(metric)(ends[1])})" if ends else told


def how_it_was_made(recipe_toml: str) -> str:
    """The whole recipe, fenced by more backticks than it holds."""
    lines = "\n".join(clean(line) for line in recipe_toml.strip().splitlines())
    longest = max((len(ticks) for ticks in re.findall(r"`+", lines)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"## How it was made\n\n{fence}toml\n{lines}\n{fence}"


def limits(found: dict[str, Any], model: str) -> str:
    """What the figures do not say."""
    told = [
        "It was trained and measured on the data of the recipe. On other texts it may be worse; nothing here measures that."
    ]
    for data, split, metric in quoted(found):
        rows = number(inside(found, "models", model, "quality", data, split, "rows"))
        if rows:
            told.append(f"{safe(data)}: {safe(titled(metric))} on {safe(split)} rests on {count(rows)} labelled rows.")
        error = number(inside(found, "models", model, "quality", data, split, "calibration_error"))
        if error is not None:
            told.append(
                f"{safe(data)}: its probabilities are off by {percent(error)} points on average (calibration error)."
            )
    if len(seeds_of(found)) < 2:
        told.append("It is one seed: another seed gives other weights and other scores.")
    if model.startswith("distilled"):
        told.append("What the teacher gets wrong or is unfair about, the student may have learned from it.")
    if (device := found.get("device")) is not None:
        told.append(f"Times are of one machine ({safe(device)}); on another they differ.")
    told += [safe(one) for one in caveats(found)]
    if found.get("too_busy"):
        told.append(f"The times are not to be trusted: {safe(found['too_busy'])}.")
    return "\n".join(["## Limits", "", *(f"- {line}" for line in told)])


def safe(text: Any) -> str:
    """A name or sentence as markdown shows it: no markup, no HTML, no new cell or line comes of it."""
    kept = clean(text, 400).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"[`|\[\]*_~\\!#{}$]", lambda found: f"&#{ord(found[0])};", kept)
