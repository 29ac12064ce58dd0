from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.reporting import test_page_in_browser as test_report_in_browser
from tests.reporting.test_page_in_browser import CHROMIUM, HOSTILE, POLICY, dom, nothing_was_run
from tests.support.commands import FAST, potstill
from tests.support.small_models import sentences, write_csv


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on PATH")
def test_20_scripts_in_labels_texts_and_names_never_run(
    home: Path, tmp_path: Path, figure: Callable[..., None]
) -> None:
    """A whole run whose labels, texts, columns, files, folder and name are hostile."""
    test_report_in_browser.test_the_control_runs_its_script(tmp_path)
    run = tmp_path / HOSTILE[1]
    column = "<img src=x onerror=\"document.title='injected'\">"  # without a comma, which stands between columns
    for split, rows, seed in (("train", 240, 1), ("dev", 80, 2), ("test", 80, 3)):
        named = [
            (f"{text} {HOSTILE[n % len(HOSTILE)]}", HOSTILE[3 + label])
            for n, (text, label) in enumerate(sentences(rows, seed))
        ]
        write_csv(tmp_path / f"{HOSTILE[1]}{split}.csv", named, ("text", column))
    data = [w for s in ("train", "dev", "test") for w in (f"--{s}", str(tmp_path / f"{HOSTILE[1]}{s}.csv"))]
    data += ["--label", column]
    teacher = tmp_path / "teacher"
    assert potstill("finetune", home / "encoder", *data, "--epochs", "6", "--out", teacher, *FAST) == 0
    words = ["distill", "--teacher", teacher / "student", *data, "--student", "keep_layers:1", "--epochs", "1"]
    assert potstill(*words, "--out", run, *FAST) == 0  # the folder names the run
    page = (run / "report.html").read_text(encoding="utf-8")
    for number, text in enumerate((page, POLICY.sub("", page))):  # the page, and the page without its own protection
        (tmp_path / f"page-{number}.html").write_text(text, encoding="utf-8")
        seen = dom(tmp_path / f"page-{number}.html", tmp_path)
        nothing_was_run(seen)
        assert "onerror" in seen and "&lt;script&gt;" in seen, "the texts are there to be read"
    figure(20, "0 scripts run; the same texts in a plain page run 5 of 5")
