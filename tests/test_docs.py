"""The documentation stays true: references match the code, links lead somewhere, examples are verbs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simulator.cli import verbs
from simulator.scenario import scenarios, topologies
from simulator.scenario.reference import reference

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_the_reference_of_scenario_fields_is_what_the_code_makes() -> None:
    assert (ROOT / "docs" / "reference" / "scenario.md").read_text(encoding="utf-8") == reference()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_verbs_of_bundled_things(page: Path) -> None:
    for verb, rest in re.findall(
        r"^(?:\$ )?trainsim ([a-z-]+)(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE
    ):
        assert verb in verbs(), f"{page}: {verb}"
        first = rest.split()[0] if rest.split() else ""
        if verb == "simulate" and not first.endswith(".yaml"):
            assert first in scenarios(), f"{page}: {first}"
        if verb == "cluster":
            assert first in topologies(), f"{page}: {first}"


def examples() -> list[tuple[str, str, list[str]]]:
    """(page, command, lines that follow it) of every console block whose command is quick."""
    found = []
    for page in PAGES:
        for block in re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            command, *lines = block.strip("\n").splitlines()
            if command.startswith("$ trainsim plan") or command.startswith("$ trainsim schedule"):
                found.append((str(page.relative_to(ROOT)), command[2:], lines))
    return found


@pytest.mark.parametrize(("page", "command", "lines"), examples())
def test_an_example_prints_what_the_page_says(
    capsys: pytest.CaptureFixture[str], page: str, command: str, lines: list[str]
) -> None:
    from test_cli import call

    _, out, _ = call(capsys, *command.split()[1:])
    assert out.splitlines() == lines, page
