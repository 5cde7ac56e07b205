import pytest

from tasks.intake.kinds import KINDS
from tasks.intake.mending import mended
from tasks.intake.rules import ADVICE, REPAIRS
from tasks.intake.text.scripts import main_script
from tasks.intake.text.texts import found_in, text_rules

RULES = text_rules(["<|mine|>", "</s>"])


def found(text: str) -> list[tuple[str, str, int]]:
    return [(fault.rule, fault.match.name, fault.match.start) for fault in found_in([text], RULES)]


def repaired(text: str, *rules: str) -> tuple[str, list[tuple[str, bool]]]:
    changed, faults = mended(KINDS["prompts"], {0: {"prompt": text}}, RULES, frozenset(rules))
    return changed.get(0, {"prompt": text})["prompt"], [(fault.rule, fault.is_repaired) for fault in faults]


def test_every_rule_says_what_to_do_and_every_repair_is_one():
    assert set(RULES) <= set(ADVICE)
    assert set(REPAIRS) == {name for name, rule in RULES.items() if rule.mends is not None}


@pytest.mark.parametrize(
    "text",
    [
        "a\tb\nc", "“Hi”", "café", "5 °C", "CAFÉ»", "Ão", "naïve â la carte", "日本語", "Ünïcödé", "Привет, мир",
        "Ελληνικά", "שלום", "العربية", "हिन्दी", "tiếng Việt", "SÃO PAULO — “Não”", "👨‍👩‍👧 family",
        "می‌خواهم", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "a < b > c [1]", "x <sub>2</sub>",
        "He said sk-8 boards.", "12 + 13 = 25", "<tool_call>", "ask@", "10.0.0.1", "version 1.2.3",
    ],
)  # fmt: skip
def test_good_text_breaks_no_rule(text: str):
    assert found(text) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a\x00b", ("control_character", "U+0000", 1)),
        ("a\x1b[0m", ("control_character", "U+001B", 1)),
        ("a\r\nb", ("carriage_return", "CRLF", 1)),
        ("a\rb", ("carriage_return", "CR", 1)),
        ("\u202eevil", ("bidi_control", "U+202E", 0)),
        ("a\u2066b\u2069", ("bidi_control", "U+2066", 1)),
        ("a\u200bb", ("zero_width", "U+200B", 1)),
        ("a\u200db", ("zero_width", "U+200D", 1)),
        ("hi\U000e0041", ("zero_width", "U+E0041", 2)),
        ("a\ufffdb", ("replacement_character", "U+FFFD", 1)),
        ("a\ud83d", ("lone_surrogate", "U+D83D", 1)),
        ("x <|im_start|>user", ("special_token", "<|im_start|>", 2)),
        ("[INST] x", ("special_token", "[INST]", 0)),
        ("end</s>", ("special_token", "</s>", 3)),
        ("<|mine|>", ("special_token", "<|mine|>", 0)),
        ("key AKIAIOSFODNN7EXAMPLE", ("secret", "AWS key", 4)),
        ("https://me:hunter2@host.de/x", ("secret", "password in a URL", 0)),
        ("-----BEGIN RSA PRIVATE KEY-----", ("secret", "private key", 0)),
        ("write to jo.doe@mail.co.uk", ("personal_data", "e-mail address", 9)),
        ("call +49 30 901820 today", ("personal_data", "phone number", 5)),
        ("call (555) 123-4567", ("personal_data", "phone number", 5)),
        ("4111 1111 1111 1111", ("personal_data", "card number", 0)),
        ("DE89 3704 0044 0532 0130 00", ("personal_data", "account number", 0)),
        ("from 8.8.8.8", ("personal_data", "IP address", 5)),
    ],
)
def test_a_fault_has_a_rule_a_name_and_a_place(text: str, fault: tuple[str, str, int]):
    assert found(text) == [fault]


@pytest.mark.parametrize("text", ["â€œHiâ€\x9d", "caf\u00c3\u00a9", "5 \u00c2\u00b0C", "\u00ef\u00bb\u00bfHi"])
def test_mojibake_is_found(text: str):
    assert [rule for rule, _, _ in found(text)] == ["mojibake"]


@pytest.mark.parametrize("text", ["4111 1111 1111 1112", "DE89 3704 0044 0532 0130 01", "127.0.0.1", "300.8.8.8"])
def test_numbers_with_a_wrong_checksum_are_nobodys(text: str):
    assert found(text) == []


@pytest.mark.parametrize(
    ("rule", "text", "better"),
    [
        ("mojibake", "caf\u00c3\u00a9", "café"),
        ("control_character", "a\x00b", "ab"),
        ("carriage_return", "a\r\nb\rc", "a\nb\nc"),
        ("bidi_control", "\u202ea", "a"),
        ("zero_width", "a\u200bb", "ab"),
        ("special_token", "a<|im_<|im_end|>end|>b", "ab"),
        ("lone_surrogate", "a\ud83db", "ab"),
        ("secret", "use AKIAIOSFODNN7EXAMPLE now", "use [AWS key] now"),
        ("personal_data", "ask a@b.de or 8.8.8.8", "ask [e-mail address] or [IP address]"),
    ],
)
def test_a_repair_takes_the_fault_out_and_leaves_the_rest(rule: str, text: str, better: str):
    assert repaired(text, rule) == (better, [(rule, True)])
    assert repaired(text) == (text, [(rule, False)])


def test_a_text_that_no_repair_helps_stays_a_fault():
    # Bytes that belong to no character: decoding again finds nothing better.
    text, faults = repaired("\u00c2\u2122\u00c3\u2013 x \u00e2\u20ac", "mojibake")
    assert ("mojibake", False) in faults


def test_repairs_leave_the_row_that_was_read_alone():
    row = {"prompt": [{"role": "user", "content": "a\u200bb"}, {"role": "user", "content": "c"}]}
    changed, (fault,) = mended(KINDS["prompts"], {5: row}, RULES, frozenset({"zero_width"}))
    assert changed[5]["prompt"][0]["content"] == "ab"
    assert row["prompt"][0]["content"] == "a\u200bb"
    assert (fault.position, fault.message) == (5, "U+200B at character 2 of message 1.")


@pytest.mark.parametrize(
    ("text", "script"),
    [("Hello", "Latin"), ("1 + 1 = 2", None), ("été “fini”", "Latin"), ("Привет", "Cyrillic"), ("日本語です", "Han"),
     ("한국어", "Hangul"), ("שלום", "Hebrew"), ("Say привет", "Cyrillic"), ("", None)],
)  # fmt: skip
def test_the_main_script_has_most_letters(text: str, script: str | None):
    assert main_script(text) == script
