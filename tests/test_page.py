"""The page of a diagnosis: whole in itself, readable in light and dark, drawn by a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from kineto_files import call as event
from kineto_files import kernel, write
from small import run, scenario, values
from test_cli import call

from simulator.report.page import colour, page
from simulator.study.diagnose import diagnose
from simulator.study.trace_diagnosis import diagnose_traces

SHORT = {"run": {"steps": 3, "warmup": 1}}
SLOW = {**SHORT, "faults": [{"kind": "slow-compute", "node": 2, "factor": 0.7}]}
VOID = {"meta", "link", "br", "hr", "input", "img"}


class Strict(HTMLParser):
    """Fails on what is not closed in order; keeps ids and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        about = dict(attrs)
        self.ids += [about["id"] or ""] if "id" in about else []
        self.urls += [about[name] or "" for name in ("src", "href", "action", "data") if name in about]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("page")
    events = [
        *(kernel("gemm", 1000.0 * n, 300, 7, n) for n in range(1, 9)),
        *(event("cudaLaunchKernel", 1000.0 * n - 100, 50, n) for n in range(1, 9)),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(a, b)", 3200.0, 500, 20, 90),
        event("cudaDeviceSynchronize", 5400, 500),
    ]
    trace = write(folder / "trace.json", events)
    return {
        "scenario": page(diagnose(scenario(**SLOW), processes=1)),
        "trace": page(diagnose_traces(trace)),
    }


def data_of(text: str) -> dict[str, dict[str, object]]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@pytest.mark.parametrize("what", ["scenario", "trace"])
def test_a_page_is_well_formed_and_asks_nobody_for_anything(pages: dict[str, str], what: str) -> None:
    parser = Strict()
    parser.feed(pages[what])
    assert parser.open == []
    assert len(set(parser.ids)) == len(parser.ids)
    assert all(url.startswith("#") and url[1:] in parser.ids for url in parser.urls)
    assert not re.search(r"https?:|//[a-z0-9-]+\.[a-z]|@import|url\(|fetch\(|XMLHttp", pages[what])
    assert "default-src 'none'" in pages[what]


@pytest.mark.parametrize("what", ["scenario", "trace"])
def test_the_gpu_of_every_rank_is_coloured_without_holes(pages: dict[str, str], what: str) -> None:
    shown = data_of(pages[what])["timeline"]
    for lane in shown["lanes"]:
        gpu = lane["rows"][0]
        start, length = np.array(gpu["start"]), np.array(gpu["length"])
        assert (start[1:] >= start[:-1]).all()
        assert length.sum() == pytest.approx(shown["length"], rel=0.01)
        assert max(gpu["cause"]) < len(shown["names"]) == len(shown["classes"])


def test_who_is_slow_is_shown_in_timeline_and_heat_map(pages: dict[str, str]) -> None:
    shown = data_of(pages["scenario"])
    assert any("node 2" in lane["about"] for lane in shown["timeline"]["lanes"])
    for measure in shown["heat"]["measures"]:
        worst = max(range(len(measure["against"])), key=lambda row: measure["against"][row][-1])
        assert shown["heat"]["nodes"][worst] == 2


def test_big_timelines_make_small_pages() -> None:
    found = diagnose(scenario(run={"steps": 12, "warmup": 1}), processes=1)
    assert len(page(found)) < 3_000_000


def test_names_cannot_break_out_of_the_page() -> None:
    loaded = scenario(name="</script><b>x", **SHORT)
    text = page(diagnose(loaded, processes=1))
    parser = Strict()
    parser.feed(text)
    assert parser.open == []
    assert "<b>x" not in text


def luminance(text: str) -> float:
    parts = [int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_texts_and_colours_stand_out_in_light_and_dark() -> None:
    """WCAG 2.2: 4.5 to 1 for text, 3 to 1 for graphics."""
    css = (files("simulator.report") / "data" / "diagnosis.css").read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", part))
        for part in css.split("@media (prefers-color-scheme")[:2]
    )
    assert set(light) == set(dark)
    for theme in (light, dark):
        for name in set(theme) - {"page", "card", "line", "even"}:
            for ground in ("page", "card"):
                pair = sorted((luminance(theme[name]), luminance(theme[ground])))
                ratio = (pair[1] + 0.05) / (pair[0] + 0.05)
                assert ratio >= (4.5 if name in ("text", "dim") else 3.0), (name, theme[name], ground, ratio)
    causes = {colour(item.name) for item in run(**SHORT).waterfall}
    assert causes <= set(light)


def test_the_command_writes_a_page_of_what_it_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file, saved, html = tmp_path / "small.yaml", tmp_path / "run.npz", tmp_path / "page.html"
    file.write_text(json.dumps(values(**SLOW)), encoding="utf-8")
    assert call(capsys, "simulate", str(file), "--save", str(saved))[0] == 0
    assert call(capsys, "diagnose", str(saved), "--html", str(html), "--ranks", "0,16")[0] == 0
    lanes = data_of(html.read_text(encoding="utf-8"))["timeline"]["lanes"]
    assert [lane["label"].split()[1] for lane in lanes] == ["0", "16"]
    before = html.read_bytes()
    for ranks in ("x", "-1", "5"):
        assert call(capsys, "diagnose", str(saved), "--html", str(html), "--ranks", ranks)[0] == 2
    assert call(capsys, "diagnose", str(saved), "--html", str(tmp_path / "no" / "page.html"))[0] == 2
    assert html.read_bytes() == before


BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
@pytest.mark.parametrize("what", ["scenario", "trace"])
def test_a_browser_draws_it_without_a_network_in_light_and_dark(
    pages: dict[str, str], what: str, tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    drive = (
        "<script>for (const [id, keys] of [['timeline', ['+', 'ArrowRight', 'ArrowDown', 'PageDown', '-', 'Home']],"
        "['heat', ['ArrowDown', 'ArrowRight']]]) for (const key of keys)"
        " document.getElementById(id).dispatchEvent(new KeyboardEvent('keydown', {key}));</script></body>"
    )
    file.write_text(pages[what].replace("</body>", drive), encoding="utf-8")
    shots = []
    for scheme in (1, 0):
        shot = tmp_path / f"{scheme}.png"
        command = [
            str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND",
            "--window-size=1200,2000", "--virtual-time-budget=2000", f"--user-data-dir={tmp_path / 'user'}",
            f"--blink-settings=preferredColorScheme={scheme}", "--enable-logging=stderr",
        ]  # fmt: skip
        done = subprocess.run(
            [*command, f"--screenshot={shot}", str(file)],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert not re.findall(r"CONSOLE.*(?:Uncaught|Refused).*", done.stderr)
        shots.append(shot.read_bytes())
    dom = subprocess.run(
        [*command, "--dump-dom", str(file)], capture_output=True, text=True, timeout=60, check=True
    )
    assert 'data-drawn="yes"' in dom.stdout
    said = re.findall(r'-said" aria-live="polite">([^<]*)<', dom.stdout)
    assert len(said) == 2
    assert all(text.startswith("rank") for text in said)
    assert all(one != other for one, other in pairwise(shots))
