"""docs/policies.md is run: its policy is imported, checked, replayed and swept; its table is that of the registry."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from profiles import toy_profile
from typer.testing import CliRunner

from batchtwin.cli import app
from batchtwin.experiments.sweep import open_sweep
from batchtwin.scheduler import POLICIES, Scheduler, SchedulerConfig, Step, load_policy
from batchtwin.scheduler.policies import policy_options
from batchtwin.testing import check_policy

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "policies.md").read_text()
MINE = "my_policies:ShortPromptsFirst"


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A reader's folder: the policy saved as told, and a profile."""
    (tmp_path / "my_policies.py").write_text(_blocks("python")[0])
    toy_profile().save(tmp_path / "profile.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_policies", raising=False)
    return tmp_path


def _run(command: str) -> str:
    words = shlex.split(command.replace("\\\n", " "))
    assert words[0] == "batchtwin"
    done = CliRunner().invoke(app, words[1:])
    assert done.exit_code == 0, done.output
    return done.output


def _commands(block: str) -> list[str]:
    return re.findall(r"^batchtwin (?:.*\\\n)*.*", block, flags=re.MULTILINE)


def test_the_policy_of_the_page_has_about_twenty_lines_and_keeps_the_rules(folder: Path) -> None:
    lines = [line for line in _blocks("python")[0].splitlines() if line.strip()]
    code = [line for line in lines if not line.startswith(("from", "import"))]
    assert len(code) <= 20
    check_policy(MINE, examples=20)


def test_short_prompts_overtake_as_the_page_says_and_no_further(folder: Path) -> None:
    """100 tokens are worth 0.5 s at 5 ms each: a long prompt of 100 that came 1 s earlier stays ahead of one of 1."""
    from batchtwin.scheduler import Request

    queue = load_policy(f"{MINE}:ms_per_token=5").make_queue()
    for name, arrival_s, tokens in (("long", 0.0, 100), ("soon", 0.4, 1), ("late", 1.0, 1)):
        queue.push(Request(name, tokens, 1, arrival_s=arrival_s))
    assert [request.request_id for request in queue] == ["soon", "long", "late"]


def test_the_test_of_the_page_passes(folder: Path) -> None:
    space: dict[str, object] = {}
    exec(_blocks("python")[1], space)
    space["test_my_policy_keeps_the_rules"]()  # type: ignore[operator]


def test_the_commands_of_the_page_work_and_the_policy_makes_a_difference(folder: Path) -> None:
    replays, sweeps = (_commands(block) for block in _blocks("sh"))
    assert (len(replays), len(sweeps)) == (2, 1)
    for command in replays:
        assert "my_policies:ShortPromptsFirst" in _run(command).replace("\n", " ")
    _run(sweeps[0])
    done = open_sweep(folder / "results" / "policies")
    by_policy = {policy: [r for r in done.feasible() if r.cell.policy == policy] for policy in done.spec.policies}
    assert list(by_policy) == ["vllm_v1", f"{MINE}:ms_per_token=5"]
    assert all(len(results) >= 4 for results in by_policy.values())
    first, second = ([result.metrics["median_ttft_ms"] for result in results] for results in by_policy.values())
    assert first != second


def test_the_python_of_the_page_sweeps_both_policies(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(_blocks("python")[2], {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["vllm_v1", MINE]


def test_the_entry_point_of_the_page_names_the_policy(folder: Path) -> None:
    info = folder / "my_policies-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-policies\nVersion: 1.0\n")
    group, entry = _blocks("toml")[0].splitlines()
    assert group == '[project.entry-points."batchtwin.policies"]'
    (info / "entry_points.txt").write_text(f"[batchtwin.policies]\n{entry.replace(chr(34), '')}\n")
    assert vars(load_policy("short_prompts_first:ms_per_token=5"))["ms_per_token"] == 5.0


def test_the_verbs_of_the_page_exist() -> None:
    verbs = PAGE.split("| verb of `Step` |")[1].split("\n\n")[0]
    named = re.findall(r"`(\w+)\(", verbs)
    looks = re.findall(r"`(\w+)(?:\(\))?`", PAGE.split("It may look at ")[1].split(" and the like")[0])
    assert len(named) >= 8
    assert len(looks) >= 8
    step = Step(Scheduler(SchedulerConfig()))
    for name in named + looks:
        assert hasattr(step, name), name


def _table() -> dict[str, list[str]]:
    rows = PAGE.split("| policy | who uses it |")[1].splitlines()[2:]
    cells = ([cell.strip() for cell in row.strip("|").split("|")] for row in rows if row.startswith("|"))
    return {re.findall(r"`(\w+)`", first)[0]: [first, *rest] for first, *rest in cells}


def test_the_table_lists_the_shipped_policies_with_their_options_and_oracles() -> None:
    table = _table()
    assert list(table) == list(POLICIES)
    for name, cells in table.items():
        policy = POLICIES[name]
        assert ("(oracle)" in cells[0]) == policy().is_oracle, name
        assert re.findall(r"`(\w+)`", cells[4]) == list(policy_options(policy)), name
        assert all(cells[1:4]), name


def test_the_page_says_no_more_than_the_registry_of_where_a_policy_comes_from() -> None:
    """What the page names as a user of a policy, the policy's own docstring names too."""
    table = _table()
    for name, word in {
        "prefill_first": "SGLang",
        "static_batch": "Hugging Face",
        "decode_first": "Sarathi-Serve",
        "orca": "TGI",
        "fair": "VTC",
        "chunk_when_decoding": "26625",
        "reserve": "GUARANTEED_NO_EVICT",
    }.items():
        assert word in table[name][1], name
        assert word in (POLICIES[name].__doc__ or ""), name
