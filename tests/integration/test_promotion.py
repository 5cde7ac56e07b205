"""Who is champion, and what is written down of it: commands, clicks, races, damage."""

import getpass
import math
import re
import threading

import pytest

import tasks.registry.promotion
from rlcore.configs import EvaluateConfig, GateConfig, RegisterConfig
from rlcore.errors import CheckpointError, ConfigError, DataError
from tasks.evaluate import ENDED, LENGTH, SCORE, Sheet, compare_models
from tasks.gate import WIN_RATE, GateReport, decide
from tasks.measuring.answers import Answers
from tasks.records.artifacts import POLICY_DIR, content_md5
from tasks.registry.promotion import UNKNOWN_ACTOR, audit, promote, rollback
from tasks.registry.store import POLICY_MODEL, PromotionRefused, is_announced, note_announced
from tasks.serving.packaging import stored_model
from tests.support.registry import REFUSED, DyingClient, Killed, Registry


@pytest.fixture
def three(registry: Registry) -> Registry:
    """Version 1 is champion by `promote`; 2 and 3 were measured against it, and 3 was refused."""
    registry.add("first")
    promote(registry.client, registry.root)
    registry.add("second")
    registry.add("third", REFUSED)
    return registry


def damage(registry: Registry, content: str) -> None:
    """Change a file in the DVC cache."""
    cache = (registry.root / ".dvc" / "cache").rglob("*")
    (file,) = (path for path in cache if path.is_file() and path.read_bytes() == content.encode())
    file.write_text("broken")


def test_the_challenger_becomes_champion_with_the_tags_of_an_audit(three: Registry):
    move = promote(three.client, three.root)
    assert (move.version, move.previous, move.verified) == ("2", "1", True)
    assert three.at("champion") == "2"
    tags = three.tags("2")
    assert tags["promotion.actor"] == getpass.getuser()
    assert (tags["promotion.previous"], tags["promotion.verified"]) == ("1", "true")
    assert tags["promotion.seen_at"] == move.seen_at
    assert three.tags("1")["promotion.previous"] == "none"


def test_promoting_the_champion_again_changes_nothing(three: Registry):
    before = three.tags("1")
    assert promote(three.client, three.root, "1") is None
    assert three.tags("1") == before


def test_a_version_that_the_gate_refused_stays_out_and_the_reason_is_said(three: Registry):
    with pytest.raises(
        PromotionRefused, match=r"version 3: the gate refused it \(kl_sequence: not measured.*--override"
    ):
        promote(three.client, three.root, "3")
    assert three.at("champion") == "1"
    assert "promotion.seen_at" not in three.tags("3")


def test_an_override_promotes_it_and_keeps_its_reason(three: Registry):
    with pytest.raises(ConfigError, match="found no text"):
        promote(three.client, three.root, "3", override=" ")
    move = promote(three.client, three.root, "3", override="a demonstration")
    assert not move.verified
    assert three.at("champion") == "3"
    tags = three.tags("3")
    assert (tags["promotion.override"], tags["promotion.verified"]) == ("a demonstration", "false")


def test_a_verdict_against_an_earlier_champion_does_not_count(three: Registry):
    # Version 4 beats version 1, but version 2 took its place meanwhile.
    three.add("fourth")
    promote(three.client, three.root, "2")
    with pytest.raises(PromotionRefused, match="the gate passed it against champion 1, but version 2 is champion"):
        promote(three.client, three.root, "4")
    assert three.at("champion") == "2"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("9", "rlhf-policy has no '9'. Name one of 3, 2, 1, or an alias"),
        ("best", "rlhf-policy has no 'best'. Name one of 3, 2, 1, or an alias"),
        ("../3", "rlhf-policy has no '../3'"),
    ],
)
def test_an_unknown_version_says_which_there_are(three: Registry, name: str, message: str):
    with pytest.raises(ConfigError) as caught:
        promote(three.client, three.root, name)
    assert message in str(caught.value)


def test_without_versions_or_a_challenger_the_error_says_what_to_run(registry: Registry):
    with pytest.raises(ConfigError, match="has no version yet. Run `rlhf pipeline run`"):
        promote(registry.client, registry.root)
    registry.add("first", REFUSED)
    with pytest.raises(ConfigError, match="'challenger'. The gate has passed none"):
        promote(registry.client, registry.root)
    with pytest.raises(ConfigError, match="has no champion"):
        rollback(registry.client, registry.root)


def test_rollback_goes_back_one_champion_at_a_time(three: Registry):
    promote(three.client, three.root)
    three.add("fourth")
    promote(three.client, three.root)
    assert [three.at("champion"), rollback(three.client, three.root).version] == ["4", "2"]
    assert three.tags("2")["promotion.verified"] == "true"
    assert rollback(three.client, three.root).version == "1"
    assert three.at("champion") == "1"
    with pytest.raises(ConfigError, match="Version 1 is the first champion"):
        rollback(three.client, three.root)


def test_of_two_promotions_at_once_one_is_refused(three: Registry, monkeypatch: pytest.MonkeyPatch):
    three.add("fourth")
    both_looked = threading.Barrier(2)
    monkeypatch.setattr(tasks.registry.promotion, "verify_checkpoint", lambda *given: both_looked.wait(20))
    refused: list[Exception] = []

    def run(name: str) -> None:
        try:
            promote(three.client, three.root, name)
        except PromotionRefused as error:
            refused.append(error)

    threads = [threading.Thread(target=run, args=(name,)) for name in ("2", "4")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (error,) = refused
    winner = three.at("champion")
    assert f"it was version 1 and is version {winner}" in str(error)
    (loser,) = {"2", "4"} - {winner}
    assert "promotion.seen_at" not in three.tags(loser)


def test_a_click_between_look_and_move_wins(three: Registry, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tasks.registry.promotion, "verify_checkpoint", lambda *given: three.click("3"))
    with pytest.raises(PromotionRefused, match="it was version 1 and is version 3"):
        promote(three.client, three.root)
    assert three.at("champion") == "3"


def test_a_damaged_checkpoint_becomes_no_champion_whoever_asks(three: Registry):
    damage(three, "second")
    with pytest.raises(DataError, match="damaged in the DVC cache: weights"):
        promote(three.client, three.root, "2", override="I insist")
    assert three.at("champion") == "1"
    assert "promotion.seen_at" not in three.tags("2")


def test_a_checkpoint_that_is_nowhere_becomes_no_champion(three: Registry):
    three.client.set_model_version_tag(POLICY_MODEL, "2", "dvc.data/models/policy.md5", "0" * 32 + ".dir")
    with pytest.raises(DataError, match="not in the DVC cache"):
        promote(three.client, three.root)
    three.client.delete_model_version_tag(POLICY_MODEL, "2", "dvc.data/models/policy.md5")
    with pytest.raises(ConfigError, match="the pipeline did not register it"):
        promote(three.client, three.root)
    assert three.at("champion") == "1"


def test_the_copy_that_is_served_is_hashed_too(registry: Registry):
    registry.keep(POLICY_DIR)
    registry.register(config=RegisterConfig())
    config = stored_model(registry.client, registry.client.get_model_version(POLICY_MODEL, "1")) / "artifacts"
    config = config / "policy" / "config.json"
    whole = config.read_bytes()
    config.write_text("{}")
    with pytest.raises(CheckpointError, match=f"{content_md5(registry.root / POLICY_DIR)} was measured"):
        promote(registry.client, registry.root)
    assert registry.at("champion") is None
    config.write_bytes(whole)
    assert promote(registry.client, registry.root).version == "1"


def test_the_audit_has_nothing_to_add_to_a_command(three: Registry):
    before = three.tags("1")
    move = audit(three.client, three.root)
    assert (move.version, move.actor) == ("1", getpass.getuser())
    assert three.tags("1") == before
    assert not is_announced(three.client, move)
    note_announced(three.client, move)
    assert is_announced(three.client, audit(three.client, three.root))


def test_before_any_champion_the_audit_finds_nothing(registry: Registry):
    move = audit(registry.client, registry.root)
    assert move.version is None
    assert is_announced(registry.client, move)


def test_the_audit_finds_a_click_and_verifies_it(three: Registry):
    three.click("2")
    move = audit(three.client, three.root)
    assert (move.version, move.previous, move.actor, move.verified) == ("2", "1", UNKNOWN_ACTOR, True)
    tags = three.tags("2")
    assert (tags["promotion.previous"], tags["promotion.actor"]) == ("1", "mlflow-ui (unknown)")
    assert tags["promotion.verified"] == "true"
    assert audit(three.client, three.root) == move
    assert rollback(three.client, three.root).version == "1"


def test_a_click_on_a_refused_version_is_not_verified(three: Registry):
    three.click("3")
    move = audit(three.client, three.root)
    assert not move.verified
    assert "kl_sequence" in move.faults
    assert three.tags("3")["promotion.verified"] == "false"


def test_a_click_on_a_damaged_checkpoint_is_not_verified(three: Registry):
    damage(three, "second")
    three.click("2")
    assert "damaged in the DVC cache" in audit(three.client, three.root).faults


def test_a_click_back_to_a_champion_of_old_is_noticed_although_it_has_tags(three: Registry):
    promote(three.client, three.root)
    three.click("1")
    move = audit(three.client, three.root)
    assert (move.version, move.previous, move.actor) == ("1", "2", UNKNOWN_ACTOR)


def test_an_alias_that_was_taken_away_is_noticed(three: Registry):
    three.client.delete_registered_model_alias(POLICY_MODEL, "champion")
    move = audit(three.client, three.root)
    assert (move.version, move.previous) == (None, "1")
    assert "taken away" in move.faults
    assert audit(three.client, three.root) == move


def test_a_command_that_was_killed_between_alias_and_note_is_completed(
    three: Registry, monkeypatch: pytest.MonkeyPatch
):
    def killed(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(tasks.registry.promotion.store, "note", killed)
    with pytest.raises(KeyboardInterrupt):
        promote(three.client, three.root)
    monkeypatch.undo()
    assert three.at("champion") == "2"
    move = audit(three.client, three.root)
    assert (move.version, move.previous, move.actor, move.verified) == ("2", "1", getpass.getuser(), True)


def test_a_promotion_that_is_killed_at_any_write_is_done_or_not_done(three: Registry):
    write, killed = 0, True
    while killed:
        write += 1
        client = DyingClient(three.client, write)
        try:
            move, killed = promote(client, three.root, "2"), False
        except Killed:
            reigning = three.at("champion")
            move = audit(three.client, three.root)
            assert (move.version, move.actor, move.verified) == (reigning, getpass.getuser(), True)
            if reigning == "2":
                assert move.previous == "1"
                assert three.tags("2")["promotion.seen_at"] == move.seen_at
                assert not is_announced(three.client, move)
            else:
                move = promote(three.client, three.root, "2")
        assert (move.version, move.previous, three.at("champion")) == ("2", "1", "2")
        assert audit(three.client, three.root) == move
        note_announced(three.client, move)
        assert rollback(three.client, three.root).version == "1"
    # Four tags of the version, the alias, five tags of the note.
    assert client.written == 10


def test_a_click_that_nobody_audited_is_known_to_the_next_rollback(three: Registry):
    three.click("2")
    assert rollback(three.client, three.root).version == "1"
    assert three.tags("2")["promotion.actor"] == UNKNOWN_ACTOR


PROMPTS_MEASURED = 1000
JUDGED = GateConfig(max_drop_from_best=None, max_calibration_error=None, max_leak_share=None)
"""The gate without what `compare_models` does not measure."""


def sheet(right: float) -> Sheet:
    """Answers to as many prompts, of which a share is right; NaN for a checker that fails."""
    ones = math.nan if math.isnan(right) else round(right * PROMPTS_MEASURED)
    gold = [math.nan if math.isnan(ones) else float(row < ones) for row in range(PROMPTS_MEASURED)]
    ended = [True] * PROMPTS_MEASURED
    answers = Answers([[1]] * PROMPTS_MEASURED, [[2]] * PROMPTS_MEASURED, ["5"] * PROMPTS_MEASURED, ended, [])
    measured = {"gold": gold, SCORE: gold, LENGTH: [1.0] * PROMPTS_MEASURED, ENDED: [1.0] * PROMPTS_MEASURED}
    return Sheet(answers, measured, {})


def judged(policy: float, champion: float, eval_set: str = "A") -> GateReport:
    """What the gate says of a policy and the champion on the same prompts, by their shares of right answers."""
    rows = [{"prompt": f"{eval_set}{row}"} for row in range(PROMPTS_MEASURED)]
    sheets = {"sft": sheet(0.3), "policy": sheet(policy), "champion": sheet(champion)}
    config = EvaluateConfig(samples_per_prompt=1, bootstrap_samples=200)
    return decide(JUDGED, compare_models(config, rows, sheets, [[0.5]] * PROMPTS_MEASURED), None)


def test_only_the_better_candidate_of_field_bug_h09_becomes_champion(registry: Registry):
    """Champion 2 has 0.81. 3 has 0.79, 4 NaN, 5 has 0.83 on prompts to which 2 gives 0.85, 6 has 0.84 on the same."""
    registry.add("v1")
    promote(registry.client, registry.root)
    registry.add("v2")
    promote(registry.client, registry.root)
    candidates = {
        "3": judged(0.79, 0.81),
        "4": judged(math.nan, 0.81),
        "5": judged(0.83, 0.85, "B"),
        "6": judged(0.84, 0.81),
    }
    for number, report in candidates.items():
        assert registry.add(f"v{number}", report) == number
        assert registry.at("challenger") == ("6" if number == "6" else "2")
    against = f"gate.{WIN_RATE}_low"
    for number in "35":
        with pytest.raises(PromotionRefused, match="the gate refused it"):
            promote(registry.client, registry.root, number)
        assert re.fullmatch(r"win/\S+: 0\.4\d+, bound more than 0\.5, refused", registry.tags(number)[against])
    assert registry.tags("4")[against] == "win/rate_over_champion_low: not measured, bound more than 0.5, refused"
    with pytest.raises(PromotionRefused, match="not measured"):
        promote(registry.client, registry.root, "4")
    assert registry.at("champion") == "2"
    assert promote(registry.client, registry.root).version == "6"
    assert (registry.at("champion"), registry.tags("6")["promotion.previous"]) == ("6", "2")
