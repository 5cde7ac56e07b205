"""The committed table of flags says what the command does with each: none is accepted and ignored."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rlcore.cli.flags import OTHER_SPELLINGS, add_flags, flag_of, params_from, with_flags
from rlcore.cli.llm import llm
from rlcore.cli.not_offered import NOT_OFFERED, REFUSED_VALUES
from rlcore.cli.params import LLMTrainingParams
from rlcore.cli.parser import Parser
from rlcore.cli.readers import readers_of
from rlcore.errors import ConfigError
from tests.support.checkout import ROOT
from tests.support.llm_effects import EFFECTS, OF_THE_RESULT

TABLE: dict[str, dict[str, Any]] = json.loads((ROOT / "tests/contract/llm_flags.json").read_text())
MODES = {"--train", "--backend", "--preview-trainer"}
OURS = {"--implementation", "--rl-max-turns", "--silence"}
"""Flags beside the documents'."""

ALWAYS_DONE = "--rl-optimize-device-cache"
"""A documented setting of which one value is possible."""

ACCEPTED = {flag for flag, row in TABLE.items() if "effect" in row}
REFUSED = {flag: row for flag, row in TABLE.items() if "refused" in row}


def test_each_flag_has_an_effect_or_a_reason_why_it_is_refused():
    assert [flag for flag, row in TABLE.items() if ("effect" in row) == ("refused" in row)] == []


def test_the_table_holds_the_flags_of_the_parser():
    parser = Parser()
    llm(parser)
    options = {option for action in parser._actions for option in action.option_strings}
    negated = {option for option in options if f"--{option[5:]}" in options and option.startswith("--no-")}
    others = {option for options in OTHER_SPELLINGS.values() for option in options}
    others |= {f"--no-{option[2:]}" for option in others}
    assert options - negated - others - {"-h", "--help"} == set(TABLE)


def test_the_table_says_who_reads_a_flag_and_why_one_is_refused():
    readers = {flag_of(name): readers_of(name) for name in LLMTrainingParams.model_fields}
    assert {flag: row["trainers"] for flag, row in TABLE.items() if "trainers" in row} == {
        flag: trainers for flag, trainers in readers.items() if flag != ALWAYS_DONE
    }
    reasons = {flag_of(name): (flag.reason, flag.only) for name, flag in NOT_OFFERED.items()}
    reasons[ALWAYS_DONE] = (REFUSED_VALUES["rl_optimize_device_cache"]["false"], True)
    assert {flag: (row["refused"], row["but"]) for flag, row in REFUSED.items()} == reasons


def test_each_accepted_flag_has_a_test_of_its_effect():
    assert {effect.flag for effect in EFFECTS} | OF_THE_RESULT == ACCEPTED - MODES


@pytest.mark.parametrize("flag", REFUSED)
def test_a_refused_flag_is_refused_by_name_with_its_reason(flag):
    parser = Parser()
    add_flags(parser)
    row = REFUSED[flag]
    is_switch = isinstance(row["but"], bool)
    value = str(not row["but"]).lower() if is_switch else "7"
    with pytest.raises(ConfigError, match=rf"^{flag}='{value}' is not offered: ") as raised:
        params_from(vars(parser.parse_args([flag, value])))
    assert with_flags(row["refused"]) in str(raised.value)
    assert params_from(vars(parser.parse_args([flag, str(row["but"])]))) == LLMTrainingParams()


def test_every_flag_of_the_documents_is_in_the_table(shared: Path):
    text = (shared / "research/aitraining.md").read_text()
    section = text.partition("## b. CLI")[2].partition("PPO env config JSON")[0]
    documented = documented_flags(section)
    assert len(documented) > 130
    assert documented - set(TABLE) == set()
    assert ACCEPTED - documented - MODES == OURS


def documented_flags(section: str) -> set[str]:
    """The flags in the table of section b: comma-separated, with defaults behind them and braces for common parts."""
    modes, _, table = section.partition("| Group |")
    flags = set(re.findall(r"--[a-z][a-z0-9-]*", modes)) - {"--no-wandb-visualizer"}
    for row in table.splitlines()[2:]:
        cell = row.split("|")[2] if row.count("|") > 2 else ""
        cell = re.sub(r"\[[^]]*\]|\([^()]*(?:\([^()]*\)[^()]*)*\)|\*\*", "", cell)
        cell = re.sub(r"([a-z-]+)\{([^}]*)\}", _expanded, cell)
        cell = re.sub(r"\b[a-z]+: |wandb-\*|Needs .*", "", cell)
        for part in re.split(r"[,;]", cell):
            if name := re.match(r"\s*(?:--)?([a-z][a-z0-9]*(?:[-_][a-z0-9]+)*)\b", part):
                flags.add(f"--{name[1].replace('_', '-')}")
    return flags


def _expanded(match: re.Match[str]) -> str:
    """`sample-{temperature 1,top-k 50}` as `sample-temperature 1,sample-top-k 50`."""
    return ",".join(f"{match[1]}{part.strip()}" for part in match[2].split(","))
