"""The page and the card say what was measured, whatever is missing, and say the same each time."""

from __future__ import annotations

import copy
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard

from potstill.errors import InputError
from potstill.measuring.measurements import Comparison, MeasuredModel, Measurements, Place
from potstill.measuring.significance import NOT_TESTED
from potstill.reporting import figures as plots
from potstill.reporting import scatter as scatter_plots
from potstill.reporting.card import model_card
from potstill.reporting.console import print_comparisons, print_measurements
from potstill.reporting.hub_metadata import base_model
from potstill.reporting.numbers import metric_format, score_text
from potstill.reporting.page import write_report
from potstill.reporting.scatter import Point
from potstill.reporting.sentences import headline
from potstill.reporting.svg import GREY
from potstill.reporting.tables import summary
from potstill.tasks.metrics.texts import BEAM
from tests.support import run_folders as made_runs
from tests.support.run_folders import RECIPE, corrected, difference, measurements, write_run


class Reader(HTMLParser):
    """The words of a page, its tags, and the addresses it would load."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.feed(page)
        self.text = re.sub(r"\s+", " ", " ".join(self.words))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href", "data", "action", "srcset"):
                self.loads.append(value or "")
            assert not name.startswith("on")

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def page_of(
    tmp_path: Path, *found: dict[str, Any], comparisons: list[dict[str, Any]] | None = None, logs: bool = False
) -> Reader:
    runs = [write_run(tmp_path / f"run-{place}", one, logs=logs) for place, one in enumerate(found)]
    between = None if comparisons is None else [Comparison(**comparison) for comparison in comparisons]
    return Reader(write_report(runs, tmp_path / "report.html", between).read_text(encoding="utf-8"))


def read(found: dict[str, Any]) -> Measurements:
    return Measurements.from_json(found)


def shown(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table in the terminal."""
    table = summary(read(found))
    return table.head, [
        [f"{cell.text} ({cell.interval})" if cell.interval else cell.text for cell in row] for row in table.rows
    ]


def test_the_headline_says_the_measured_numbers(tmp_path: Path) -> None:
    text = page_of(tmp_path, measurements()).text
    assert "The student keeps 94.3 % of the teacher’s accuracy (86.0 of 91.2) on test (1,821 rows)" in text
    assert "with 17.4 M of 33.4 M parameters, 4.0 times faster." in text
    assert (
        "Against fine-tuning the same student on labels alone: −0.2 points, no difference shown (p = 0.7); one" in text
    )


def test_one_seed_is_told_to_be_one_seed_in_terminal_page_and_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever its p: it is about these two models, and never says that a method is better."""
    found = measurements(distilled=0.9)
    found["differences"] = corrected([difference("distilled", "fine-tuned", 0.038, 0.004, seeds=1)])
    print_comparisons(read(found).differences)
    text = page_of(tmp_path, found).text
    verdict = "these two models differ (p = 0.004); one seed says nothing about the methods"
    told = (capsys.readouterr().out, text[: text.index("All models")], text[text.index("Which differences") :])
    for place in (*told, model_card(read(found), RECIPE)):
        assert verdict in place and "better, p" not in place
    assert "+3.8" in told[0] and "+3.8 points" in told[1]


def test_what_was_chosen_by_is_shown_and_not_tested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = measurements(seeds=3)
    for model in found["models"].values():
        for kind in ("quality", "intervals", "deviation", "per_class", "confusion", "mean_probabilities"):
            if kind in model:
                model[kind]["task"] = {"dev": model[kind]["task"]["test"]}
    untested = {key: one for key, one in difference("distilled", "fine-tuned", 0.03, 0.5).items()}
    untested = {key: untested[key] for key in ("model", "against", "data", "metric", "mean")}
    found["differences"] = corrected([{**untested, "split": "dev", "words": NOT_TESTED}])
    print_comparisons(read(found).differences)
    assert capsys.readouterr().out == f"distilled against fine-tuned, dev accuracy: +3.0, {NOT_TESTED}\n"
    text = page_of(tmp_path, found).text
    assert "on dev (1,821 rows), on which it was selected" in text
    assert f"labels alone: +3.0 points, {NOT_TESTED}." in text
    assert "Not tested distilled against fine-tuned: accuracy on dev : +3.0 points:" in " ".join(text.split())
    assert "p = " not in text and NOT_TESTED in model_card(read(found), RECIPE).replace("&#45;", "-")


def test_a_page_says_that_its_comparisons_are_corrected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = [measurements(name, 3) for name in ("kd", "patient")]
    note = "Each p is corrected for {} comparisons (Holm)"
    print_comparisons(read(found[0]).differences)
    assert note.format(2) in capsys.readouterr().out and note.format(2) in model_card(read(found[0]), RECIPE)
    assert note.format(2) in page_of(tmp_path / "one", found[0]).text
    for one in found:
        one["differences"][1] = difference("distilled", "teacher", 0.02, 0.015)  # 0.03 of two, 0.06 of four
        one["differences"] = corrected(one["differences"])
    assert found[0]["differences"][1]["words"] == "better, p = 0.03"
    both = page_of(tmp_path / "two", *found).text
    assert note.format(4) in both and "no difference shown (p = 0.06)" in both and "better, p" not in both


def test_a_translator_s_speed_stands_beside_the_quality_of_the_same_search(tmp_path: Path) -> None:
    """Greedy beside greedy, and as it would be used: a student without a beam beside a teacher with one."""
    found = measurements(metrics=("bleu", "bleu_beam"))
    quality = {"teacher": (0.352, 0.370, 190, 63), "distilled": (0.351, 0.357, 701, 300)}
    found["models"] = {name: found["models"][name] for name in quality}
    for name, (greedy, beam, fast, slow) in quality.items():
        model = found["models"][name]
        model["quality"]["task"]["test"] |= {"bleu": greedy, "bleu_beam": beam}
        model["speed"] = {"greedy": {"examples_per_second": fast}, "beam 5": {"examples_per_second": slow}}
        model["engine"] = "ctranslate2"
    first, second = headline(read(found))
    assert "99.7 % of the teacher’s BLEU K=1 (35.1 of 35.2)" in first
    assert first.endswith("3.7 times faster, both with greedy search.")
    assert "94.9 % of the BLEU of the teacher with a beam of 5 (35.1 of 37.0) and is 11.1 times faster." in second
    found["models"]["distilled"]["engine"] = "transformers"
    assert (
        "both with greedy search (the student by transformers, the teacher by ctranslate2)." in headline(read(found))[0]
    )
    found["metrics"]["task"] = ["bleu_beam", "bleu"]
    (alone,) = headline(read(found))
    assert "BLEU K=5 (35.7 of 37.0)" in alone and "4.8 times faster, both with beam search" in alone


def test_a_busy_machine_is_told_and_no_speed_is_claimed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = measurements() | {"too_busy": "two networks of one shape differ by 38 % in speed"}
    print_measurements(read(found))
    told = (capsys.readouterr().out, page_of(tmp_path, found).text, model_card(read(found), RECIPE))
    assert all("cannot be trusted: two networks of one shape differ by 38 % in speed" in one for one in told)
    assert "times faster." not in told[1] and "its speed is not stated because the machine was too busy" in told[1]


def test_what_makes_figures_doubtful_is_told_in_terminal_page_and_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = measurements() | {"changed_inputs": ["rows/train.csv"]}
    found["leaks"] = {"task": [{"split": "test", "also_in": "train", "rows": 12, "of": 100}]}
    found["models"]["distilled"]["learned"] = False
    print_measurements(read(found))
    for told in (capsys.readouterr().out, page_of(tmp_path, found).text, model_card(read(found), RECIPE)):
        assert "Inputs changed during the run: rows/train.csv." in told
        assert "12 of 100 rows of test are also in train." in told
        assert "distilled did not learn: on dev it is no better than chance." in told


def test_an_undefined_score_is_called_so() -> None:
    found = measurements()
    found["models"]["distilled"]["quality"]["task"]["test"]["accuracy"] = None
    assert score_text(read(found).models["distilled"], Place("task", "test", "accuracy")) == "undefined"


def test_several_seeds_have_a_deviation_in_the_headline_and_a_curve_each(tmp_path: Path) -> None:
    page = page_of(tmp_path, measurements(seeds=3), logs=True)
    assert "(86.0 ± 0.8 of 91.2)" in page.text and "Mean of 3 seeds" in page.text
    assert all(f"seed {seed}" in page.text for seed in range(3))


def test_a_student_above_its_teacher_keeps_no_share_and_a_slow_one_is_called_slower(tmp_path: Path) -> None:
    found = measurements(distilled=0.93)
    found["models"]["distilled"]["times_faster"] = 0.8
    text = page_of(tmp_path, found).text
    assert "The student scores 93.0 in accuracy, the teacher 91.2" in text and "keeps" not in text
    assert "slower than the teacher (0.80 times its speed)" in text


@pytest.mark.parametrize("of", [1, 2])
def test_the_same_folders_give_the_same_bytes_in_another_process_too(tmp_path: Path, of: int) -> None:
    runs = [write_run(tmp_path / f"{place}", measurements(f"run {place}", 2)) for place in range(of)]
    first = write_report(runs, tmp_path / "first.html").read_bytes()
    code = "import sys; from pathlib import Path; from potstill.reporting.page import write_report as w; assert 'torch' not in sys.modules; "
    code += "w([Path(one) for one in sys.argv[2:]], Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "second.html"), *map(str, runs)], check=True)
    assert (tmp_path / "second.html").read_bytes() == first


def test_the_page_loads_nothing_runs_nothing_and_names_every_id_once(tmp_path: Path) -> None:
    page = page_of(tmp_path, measurements("a", 3), measurements("b", 3), logs=True)
    assert "script" not in page.tags and "link" not in page.tags and "img" not in page.tags
    assert page.loads and all(address.startswith("#") for address in page.loads)
    assert {address[1:] for address in page.loads} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert "http:" not in (tmp_path / "report.html").read_text() and "https:" not in page.text


def test_every_comparison_is_in_words(tmp_path: Path) -> None:
    compared = [
        difference("kd", "patient", -0.005, 0.31, "no difference shown (p = 0.31)"),
        difference("patient", "kd", 0.02, 0.004, "better, p = 0.004"),
    ]
    text = page_of(tmp_path, measurements("kd"), measurements("patient"), comparisons=compared).text
    for one in compared:
        assert one["words"] in text and f"{one['model']} against {one['against']}: accuracy on test" in text
    shown, not_shown = text.index("Shown patient"), text.index("Not shown kd")
    assert shown < not_shown


def test_runs_that_share_teacher_and_baseline_show_them_once(tmp_path: Path) -> None:
    text = page_of(tmp_path, measurements("kd"), measurements("patient", distilled=0.87)).text
    assert "teacher (kd)" not in text and "kd against fine-tuned: accuracy on test" in text
    other = measurements("patient", distilled=0.87)
    other["models"]["fine-tuned"]["quality"]["task"]["test"]["accuracy"] = 0.85
    text = page_of(tmp_path / "other", measurements("kd"), other).text
    assert "fine-tuned (kd)" in text and "fine-tuned (patient)" in text and "teacher (kd)" not in text
    assert "patient against fine-tuned (patient): accuracy on test" in text


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    text = page_of(tmp_path, measurements("run"), measurements("run", distilled=0.87)).text
    assert "run-0" in text and "run-1" in text


def test_any_key_may_be_missing(tmp_path: Path) -> None:
    whole = measurements(seeds=2)
    for place, key in enumerate(set(whole) - {"name", "seeds", "metrics", "labels", "models"}):
        page_of(tmp_path / f"{place}", {name: value for name, value in whole.items() if name != key})
    for key in whole["models"]["distilled"]:
        less = copy.deepcopy(whole)
        for model in less["models"].values():
            model.pop(key, None)
        page_of(tmp_path / f"model-{key}", less)
        model_card(read(less), made_runs.RECIPE)
    bare = {key: whole[key] for key in ("name", "metrics", "labels")} | {"seed": 0, "models": {"fine-tuned": {}}}
    text = page_of(tmp_path / "bare", bare).text
    assert "Which differences" not in text and "Quality and cost" not in text and "Recipe" in text


def test_a_fine_tuning_run_claims_nothing_about_a_teacher(tmp_path: Path) -> None:
    found = measurements()
    found["models"] = {"fine-tuned": found["models"]["fine-tuned"]}
    del found["differences"], found["disagreements"], found["layer_map"]
    text = page_of(tmp_path, found).text
    assert "The model reaches 86.2 accuracy (95 % interval 84.6 to 87.6) on test (1,821 rows)" in text
    assert "of the teacher’s" not in text and "times faster." not in text


def test_an_old_folder_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    found = measurements()
    old = {key: found[key] for key in ("name", "metrics", "labels", "versions", "teacher_seconds")} | {"seed": 0}
    kept = ("quality", "parameters", "bytes", "times_faster")
    models = {name: {key: model[key] for key in kept} for name, model in found["models"].items()}
    for model in models.values():
        model["examples_per_second"] = 358.9
    text = page_of(tmp_path, old | {"models": models}).text
    assert "359" in text and "whether they differ was not tested" in text


@pytest.mark.parametrize("metrics", [("pearson", "spearman", "mean_of_both"), ("f1_micro", "f1_macro", "exact")])
def test_values_and_label_sets(tmp_path: Path, metrics: tuple[str, ...]) -> None:
    found = measurements(labels=() if metrics[0] == "pearson" else ("a", "b", "c"), metrics=metrics)
    found["tasks"]["task"] = "regress" if metrics[0] == "pearson" else "multilabel"
    if metrics[0] == "f1_micro":
        found["disagreements"]["task"][0] |= {"label": ["a", "b"], "teacher": ["a", "b"], "student": []}
    page = page_of(tmp_path, found)
    assert f"of the teacher’s {metrics[0]} (86.0 of 91.2)" in page.text
    assert ("Confusion matrices" in page.text) == (metrics[0] != "pearson")
    assert ("function_to_apply" in model_card(read(found), "")) == (metrics[0] == "pearson")


def test_a_language_model_is_quoted_by_its_perplexity_and_small_likelihoods_keep_their_digits(tmp_path: Path) -> None:
    found = measurements(labels=(), metrics=("likelihood", "token_accuracy", "perplexity"))
    found["tasks"]["task"], found["differences"][0]["mean"] = "write", 0.00061
    for model, perplexity in zip(found["models"].values(), (129.2, 130.0, 180.3, 171.6, 172.0), strict=True):
        for split in model["quality"]["task"].values():
            split |= {"perplexity": perplexity, "likelihood": 1 / perplexity}
        model["intervals"]["task"]["test"]["likelihood"] = [1 / (1.25 * perplexity), 1 / (0.8 * perplexity)]
    header, rows = shown(found)
    assert "dev perplexity" in header and "test perplexity" in header and not any("likelihood" in one for one in header)
    assert "129 (103–162)" in rows[0]
    text = page_of(tmp_path, found).text
    assert "The student scores 172 in perplexity, the teacher 129, on test" in text
    assert "+0.06 points" in text and "0.77" in text


def test_masked_tokens_and_next_sentences_are_both_shown_also_where_dev_is_all_there_is() -> None:
    found = measurements(labels=(), metrics=("accuracy", "next_sentence", "likelihood", "perplexity"))
    found["tasks"]["task"] = "pretrain"
    for model in found["models"].values():
        dev = {"accuracy": 0.31, "next_sentence": 0.85, "likelihood": 0.02, "perplexity": 50.0, "rows": 100}
        for kind in ("quality", "intervals", "deviation", "per_class", "confusion", "mean_probabilities"):
            if kind in model:
                model[kind]["task"] = {}
        model["quality"]["task"] = {"dev": dev}
    header, rows = shown(found)
    assert header[1:4] == ["dev accuracy", "dev next sentence", "dev perplexity"]
    assert rows[0][1:4] == ["31.0", "85.0", "50.0"]


BLEU = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"


def of_a_translator() -> dict[str, Any]:
    found = measurements(labels=(), metrics=("bleu", "bleu_beam", "chrf", "mode", "likelihood", "token_accuracy"))
    found["metrics"]["task"].append("perplexity")
    found |= {"tasks": {"task": "translate"}, "signatures": {"BLEU": BLEU}}
    for model in found["models"].values():
        for split in model["quality"]["task"].values():
            split.pop("calibration_error", None)
            split |= {"mode": 0.000342, "perplexity": 9.87}
    return found


def test_translations_are_scored_in_the_words_of_papers_and_with_the_signature(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = of_a_translator()
    header, _ = shown(found)
    assert header[1:4] == ["dev BLEU K=1", "test BLEU K=1", f"test BLEU K={BEAM}"]
    print_measurements(read(found))
    assert f"BLEU|{BLEU}" in capsys.readouterr().out.splitlines()
    text = page_of(tmp_path, found).text
    for told in ("of the teacher’s BLEU K=1 (86.0 of 91.2)", f"BLEU|{BLEU}", "p(ŷ) : the mean probability", " 0.034 "):
        assert told in text
    there = {"quality": {"task": {"test": {"mode": 0.047}}}, "deviation": {"task": {"test": {"mode": 0.00058}}}}
    assert (
        score_text(MeasuredModel(**there), Place("task", "test", "mode")) == "4.7 ± 0.1"
    )  # as many digits as the score has
    assert "chrF" in text and not re.search(r"\b(bleu|bleu_beam|chrf|mode)\b", text[text.index("All models") :])
    assert "distilled against teacher: BLEU K=1 on test" in text
    card = model_card(read(found), made_runs.RECIPE)
    assert f"`BLEU|{BLEU}`" in card and "| test BLEU K=1 | test BLEU K=5 |" in card
    plain = page_of(tmp_path / "plain", measurements()).text
    assert "sacrebleu" not in plain and "BLEU" not in plain and "p(ŷ)" not in plain


@pytest.mark.parametrize(("share", "shown"), [(0.000342, "0.034"), (0.0342, "3.4"), (0.0, "0.0"), (3.42e-9, "3.4e−07")])
def test_a_small_probability_keeps_two_digits(share: float, shown: str) -> None:
    assert metric_format("mode")(share) == shown


def test_the_page_explains_what_it_shows_alone(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", of_a_translator())
    log = run / "stages/0/epochs.csv"  # train is not scored where it would have to be decoded
    log.write_text("".join(line.rpartition(",")[0] + "\n" for line in log.read_text().splitlines()))
    text = Reader(write_report([run], tmp_path / "report.html").read_text()).text
    assert "Then the score on dev after each epoch." in text and "sample of train" not in text
    assert "Calibration error" not in text and "Same as teacher" in text
    whole = page_of(tmp_path / "whole", measurements(), logs=True).text
    assert "on a sample of train and on dev" in whole and "fine-tuned is the same student" in whole.replace("  ", " ")
    assert "Calibration error" in whole and "Same as teacher" in whole
    alone = measurements()
    alone["models"] = {"fine-tuned": alone["models"]["fine-tuned"]}
    for split in alone["models"]["fine-tuned"]["quality"]["task"].values():
        del split["agreement"]
    text = page_of(tmp_path / "alone", alone).text
    assert "Same as teacher" not in text and "is the same student" not in text and "Calibration error" in text


def test_a_card_names_metrics_of_the_hub_and_bleu_as_its_readers_know_it(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(model_card(read(of_a_translator()), ""), encoding="utf-8")
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.metrics == ["bleu", "chrf", "perplexity"]
    results = {one.metric_name: (one.metric_type, one.metric_value) for one in card.data.eval_results}
    assert results["BLEU K=1"] == ("bleu", pytest.approx(86.0)) and results["chrF"] == ("chrf", pytest.approx(86.6))
    assert results["perplexity"][1] == 9.87 and results["p(ŷ)"][1] == 0.000342


def test_matrices_of_many_classes_show_the_twenty_largest(tmp_path: Path) -> None:
    labels = [f"class {place}" for place in range(25)]
    found = measurements(labels=labels)
    for model in found["models"].values():
        model["confusion"]["task"]["test"][24][24] = 999  # the largest class stays, though it is the last
    page = page_of(tmp_path, found)
    assert "The 20 classes with the most rows, of 25." in page.text
    matrices = page.text[page.text.index("Confusion matrices") : page.text.index("Quality per class")]
    assert "class 24" in matrices and "class 22" not in matrices


def test_matrices_of_the_largest_classes_alone_are_shown(tmp_path: Path) -> None:
    found = measurements(labels=[f"class {place}" for place in range(300)])
    for model in found["models"].values():
        for kind in ("confusion", "mean_probabilities"):
            model[kind]["task"]["test"] = {"classes": [7, 150, 299], "rows": [[9, 1, 0], [2.0, 8, 0], [0, 0, 5]]}
    page = page_of(tmp_path, found).text
    matrices = page[page.index("Confusion matrices") : page.index("Quality per class")]
    assert all(name in matrices for name in ("class 7", "class 150", "class 299")) and "class 8<" not in matrices
    for model in found["models"].values():
        model["confusion"]["task"]["test"] = {"classes": [7, "x", 900], "rows": "no"}
    assert "Confusion matrices" not in page_of(tmp_path / "second", found).text


def test_the_nearest_classes_are_named(tmp_path: Path) -> None:
    found = measurements(labels=("bad", "fair", "good"))
    soft = [[0.8, 0.1, 0.1], [0.02, 0.68, 0.3], [0.01, 0.29, 0.7]]
    found["models"]["teacher"]["mean_probabilities"]["task"]["test"] = soft
    assert "Most alike to it: fair and good (29.5 %); bad and fair (6.0 %)" in page_of(tmp_path, found).text


@pytest.mark.parametrize(
    "name", ["ممتاز", "很好", "🎬 film", "x" * 5000, "a\nb\tc", "\ud800 half", "\x00\x1b", "50 $ and $5"]
)
def test_any_label_and_text_can_be_shown(tmp_path: Path, name: str) -> None:
    found = measurements(name=name, labels=(name, "other"), metrics=("accuracy", name))
    found["disagreements"]["task"][0]["text"] = name
    page = page_of(tmp_path, found, measurements("second"))
    assert (tmp_path / "report.html").stat().st_size < 2_000_000
    if name.isprintable() and len(name) < 60:
        assert name in page.text
    assert yaml.safe_load(model_card(read(found), made_runs.RECIPE).split("---\n")[1])["library_name"] == "transformers"


def test_a_beam_is_drawn_at_the_quality_of_what_it_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measurements(labels=(), metrics=("bleu", "bleu_beam"))
    found["models"] = {name: one for name, one in found["models"].items() if not name.endswith("int8")}
    for one in found["models"].values():
        one["speed"] = {"greedy": one["speed"]["onnx"], f"beam {BEAM}": one["speed"]["pytorch"]}
    drawn: list[Point] = []

    def kept(key: str, title: str, x_label: str, y_label: str, places: list[Point]) -> str:
        drawn.extend(one for one in places if "latency" in title)
        return scatter(key, title, x_label, y_label, places)

    scatter = scatter_plots.scatter
    monkeypatch.setattr(scatter_plots, "scatter", kept)
    assert f"hollow ones a beam of {BEAM}" in page_of(tmp_path, found).text
    for one, (name, model) in zip(drawn, found["models"].items(), strict=True):
        scores, speed = model["quality"]["task"]["test"], model["speed"]
        assert one.name == name and (one.x, one.y) == (speed["greedy"]["latency_ms"], 100 * scores["bleu"])
        assert one.other == (speed[f"beam {BEAM}"]["latency_ms"], 100 * scores["bleu_beam"])


@pytest.mark.parametrize("name", [r"$\alpha$ \frac", r"$\broken{$", "<b>&amp;]]>", 'a" onload="b'])
def test_text_in_a_figure_stays_text(name: str) -> None:
    places = [Point(name, 1.0, 2.0, None, None, GREY), Point("b", 2.0, 3.0, 1.0, 4.0, GREY)]
    curve = plots.Curve([1, 2], [3, 4], GREY)
    for svg in (scatter_plots.scatter("key", name, name, name, places), plots.loss_panel("key", name, [curve])):
        shown = Reader(svg)
        assert name in shown.text and set(shown.tags) <= {"svg", "g", "path", "defs", "use", "text", "clippath", "rect"}


def test_what_is_no_number_is_a_dash(tmp_path: Path) -> None:
    found = json.loads(json.dumps(measurements(seeds=2)), parse_float=lambda text: math.nan)
    page = page_of(tmp_path, found)
    measured = page.text[page.text.index("All models") : page.text.index("What the grid tried")]
    assert "nan" not in measured.lower() and "–" in measured
    card = model_card(read(found), made_runs.RECIPE)
    assert "NaN" not in card and "model-index" not in card


def test_a_grid_shows_the_curves_of_its_best_cell(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", measurements())
    (run / "stages").rename(run / "kept")
    for place, (dev, term) in enumerate([(0.8, "worse"), (0.9, "chosen"), (0.85, "middling")]):
        made_runs.write_logs(run / "grid" / f"{place:04d}-ab" / "stages" / "0", 0, [term])
        (run / "grid" / f"{place:04d}-ab" / "cell.json").write_text(json.dumps({"dev": dev}))
    text = Reader(write_report([run], tmp_path / "report.html").read_text()).text
    assert "chosen loss" in text and "worse loss" not in text and "optimizer.rate" in text


def test_each_stage_has_its_curves_and_its_map(tmp_path: Path) -> None:
    found = measurements()
    found["layer_map"].append(
        {**found["layer_map"][0], "stage": 1, "method": "soft_targets", "pairs": [], "kept": None}
    )
    run = write_run(tmp_path / "run", found)
    made_runs.write_logs(run / "stages" / "1", 0, ["soft"])
    text = Reader(write_report([run], tmp_path / "report.html").read_text()).text
    assert "Stage 1: patient" in text and "Stage 2: soft_targets" in text and "layer 3, from 3" in text
    assert "No layers are compared" in text


def test_what_cannot_be_reported_says_what_to_write(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    with pytest.raises(InputError, match="no run was given; write"):
        write_report([], out)
    with pytest.raises(InputError, match=r"there is no folder .*; write"):
        write_report([tmp_path / "nowhere"], out)
    with pytest.raises(InputError, match="is not a run of potstill; write"):
        write_report([tmp_path], out)
    run = write_run(tmp_path / "run", measurements())
    with pytest.raises(InputError, match="is a folder; write a file"):
        write_report([run], tmp_path)
    for broken in ("{", "[]", '{"models": {}}', '{"models": {"teacher": 3}}'):
        (run / "measurements.json").write_text(broken)
        with pytest.raises(InputError, match="holds no measurements; write"):
            write_report([run], out)
    (run / "measurements.json").unlink()
    with pytest.raises(InputError, match="is not finished; write its command again"):
        write_report([run], out)
    assert not out.exists()


def test_the_card_is_read_by_hugging_face(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(model_card(read(measurements()), 'teacher = "owner/name"\n'), encoding="utf-8")
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.library_name == "transformers" and card.data.base_model == "owner/name"
    results = {result.metric_name: result.metric_value for result in card.data.eval_results}
    assert results == {"accuracy": pytest.approx(0.86), "f1": pytest.approx(0.863)}
    assert "keeps 94.3 % of the teacher’s accuracy" in card.text and "one seed" in card.text


def test_a_card_cannot_be_broken_out_of(tmp_path: Path) -> None:
    evil = '"]}\n---\nlicense: evil\n```\n| <script>alert(1)</script> [x](javascript:alert(1))'
    found = measurements(name=evil, labels=(evil, "b"), metrics=("accuracy", evil))
    found["device"] = evil
    text = model_card(read(found), f"# {evil}\nteacher = 1\n")
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.license is None and card.data.to_dict()["library_name"] == "transformers"
    shown = card.text[: card.text.index("## How it was made")] + card.text[card.text.index("## Limits") :]
    assert "<script" not in shown and "](" not in shown
    rows = [line for line in shown.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in rows}) == 1
    fence = re.search(r"^(`{4,})toml$", card.text, re.MULTILINE)
    assert fence and card.text.count(fence[1]) == 2


def test_only_a_name_on_the_hub_is_a_base_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "teacher").mkdir(parents=True)
    assert base_model({"teacher": "google/bert"}) == "google/bert"
    assert base_model({"start": "google/small", "teacher": "google/bert"}) == "google/small"
    for other in ("runs/teacher", "runs/gone", "/models/bert", "../a/b", "bert", "a/b/c", "./a", "", 3, 'a/b"\nc'):
        assert base_model({"teacher": other}) is None
