"""No text of a run becomes script, markup or a second page, in a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import escape
from pathlib import Path

import pytest

from potstill.reporting.page import write_report
from tests.support.run_folders import difference, measurements, write_run

CHROMIUM = shutil.which("chromium")
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>\n?')
MARK = "injected"  # what any of the scripts below leaves in the page
RUN = f"document.documentElement.setAttribute('data-{MARK}',1);document.title='{MARK}'"
HOSTILE = [
    f"<script>{RUN}</script>",
    f'"><img src=x onerror="{RUN}">',
    f'\'><svg onload="{RUN}">',
    f"</title></style></pre></svg><script>{RUN}</script>",
    f"]]>--><script>{RUN}</script>",
    f"javascript:{RUN}",
    f'" onmouseover="{RUN}" autofocus onfocus="{RUN}',
    "{{7*7}}{% raw %}",
    r"$\alpha$ ${7*7} \frac",
    "&lt;b&gt; &#60;script&#62;",
]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on PATH")


def dom(page: Path, tmp_path: Path) -> str:
    """The page as Chromium has it after two seconds of its own time."""
    profile = tmp_path / f"profile-{page.stem}"
    options = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    options += " --disable-component-update --disable-sync --virtual-time-budget=2000 --dump-dom"
    called = [str(CHROMIUM), *options.split(), f"--user-data-dir={profile}", page.as_uri()]
    return subprocess.run(called, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report in which everything that a stranger may name is hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    every = " ".join(HOSTILE)
    runs = []
    for place, name in enumerate(HOSTILE[:3]):
        found = measurements(name, 2, labels=HOSTILE, metrics=("accuracy", HOSTILE[place], every))
        for row, text in zip(found["disagreements"]["task"], HOSTILE, strict=False):
            row |= {"text": text, "pair": every, "label": text, "teacher": every, "student": [text], "split": text}
        found["disagreements"][every] = found["disagreements"].pop("task")
        found["models"][every] = found["models"]["teacher"] | {"parts": {every: 3}}
        found["layer_map"][0]["method"] = HOSTILE[1]
        found["grid"] = [{every: every, "dev": 0.5}]
        found["versions"][every] = found["hashes"][every] = found["device"] = every
        found["differences"] = [
            # without seeds, so that the words stay theirs
            difference(HOSTILE[1], HOSTILE[4], 0.1, p, every, metric=HOSTILE[0]) | {"seeds": None}
            for p in (0.5, 0.001)
        ]
        recipe = "# fingerprint " + every + '\nname = """\n' + "\n".join(HOSTILE) + '\n"""\n'
        run = write_run(folder / f"run-{place}", found, recipe)
        steps = run / "seed-0" / "stages" / "0" / "steps.csv"
        quoted = '"' + HOSTILE[0].replace('"', '""') + '"'
        steps.write_text(steps.read_text().replace("patient", quoted, 1))
        runs.append(run)
    return write_report(runs, folder / "report.html")


def nothing_was_run(seen: str) -> None:
    """Nor did any text become markup."""
    assert f"data-{MARK}=" not in re.sub(r">[^<]*<", "><", seen)[:400]  # not on <html>
    assert not re.search(rf"<html[^>]*data-{MARK}", seen) and f"<title>{MARK}</title>" not in seen
    tags = {tag.lower() for tag in re.findall(r"<([a-zA-Z]+)", seen)}
    assert not tags & {"script", "img", "iframe", "object", "embed", "form", "base", "link", "frame"}
    assert not re.search(r"<[a-z][^>]*\son\w+=", re.sub(r'"[^"]*"', '""', seen))
    assert seen.rstrip().endswith("</html>") and seen.count("</main>") == 1


def test_the_control_runs_its_script(tmp_path: Path) -> None:
    """Else the tests below could not fail: the same strings, put in a page as they are."""
    for place, text in enumerate(HOSTILE[:5]):
        opened = {1: '<a title="', 2: "<a title='", 3: "<svg><style><title>", 4: "<!-- "}.get(place, "")
        (tmp_path / f"control-{place}.html").write_text(f"<!doctype html><body>{opened}{text}")
        assert f'data-{MARK}="1"' in dom(tmp_path / f"control-{place}.html", tmp_path), text


@pytest.mark.parametrize("policy", [True, False], ids=["as it is", "without its policy"])
def test_no_text_of_a_run_is_run_or_becomes_markup(page: Path, tmp_path: Path, policy: bool) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(POLICY.findall(text)) == 1
    (tmp_path / "page.html").write_text(text if policy else POLICY.sub("", text), encoding="utf-8")
    seen = dom(tmp_path / "page.html", tmp_path)
    nothing_was_run(seen)
    assert "{{7*7}}" in seen and r"$\alpha$" in seen and escape(HOSTILE[0], quote=False) in seen


def test_a_phone_need_not_scroll_sideways(page: Path, tmp_path: Path) -> None:
    """Also not with names that have no place to break. Another page looks, since this one runs no script."""
    text = page.read_text(encoding="utf-8")
    look = "document.title = document.querySelector('iframe').contentDocument.documentElement.scrollWidth"
    frame = f'<iframe srcdoc="{escape(text)}" style="width:390px;height:800px;border:0"></iframe>'
    (tmp_path / "phone.html").write_text(f"{frame}<script>onload = () => {look}</script>", encoding="utf-8")
    width = re.search(r"<title>(\d+)</title>", dom(tmp_path / "phone.html", tmp_path))
    assert width and int(width[1]) <= 390
