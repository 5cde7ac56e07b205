"""What each rule says to the person who has to mend the data, and what becomes of a row that breaks it."""

from collections.abc import Mapping
from typing import Literal

from rlcore.configs import ValidationRules
from tasks.records.artifacts import SPLITS

Severity = Literal["error", "warning", "repaired"]
"""An error: the row is not usable. A warning: it is worth a look. Repaired: it was mended."""

ADVICE: Mapping[str, str] = {
    "readable": "The row cannot be read. Mend the file, or export it again.",
    "is_text": "Expected text. Quote the value, or take the row out where it is missing.",
    "not_empty": "Nothing to be seen in it. Write the text, or take the row out.",
    "messages": "Expected text, or a list of messages with `role` and `content`, both text.",
    "known_role": "Expected the roles system, user, assistant, tool. Rename the role.",
    "role_order": "Whose turn it is does not fit. Order the messages, and check that no columns are swapped.",
    "shared_prompt": "The two answers do not answer the same prompt. Give both the same messages before the answer.",
    "label": "Expected true or false, without quotation marks.",
    "scores": "Expected a list or an object of finite numbers or null, the same objectives in every row, one at least.",
    "case_idx": "Expected a whole number from 0.",
    "known_split": f"Expected one of {', '.join(SPLITS)}, or no `split` at all.",
    "unknown_column": "Nobody reads this column. Move what the model has to see into prompt or messages.",
    "different_answers": "chosen and rejected are equal: the pair says nothing. Take it out.",
    "different_answers_normalised": "chosen and rejected differ in case, width or white space alone. Is that meant?",
    "duplicate": "The same row was there before. Keep it only if it is meant to count twice.",
    "duplicate_normalised": "A row that differs in case, width or white space alone was there before.",
    "near_duplicate": "A row with nearly the same words was there before.",
    "contradiction": "Another row says the opposite. Ask who is right, or take both out.",
    "max_characters": "Longer than validate.max_characters. Shorten the text, or raise the limit.",
    "prompt_too_long": "The prompt leaves no room for a response within validate.max_tokens. Shorten it.",
    "response_cut": "Prompt and response have more than validate.max_tokens tokens: the end would be cut away.",
    "template": "The chat template of validate.tokenizer does not take these messages.",
    "lone_surrogate": "Holds half of a character, as cutting JSON leaves it. Export the text again.",
    "control_character": "Holds a control character other than tab and line end. Take it out.",
    "carriage_return": r"Lines end with a carriage return. Let them end with \n alone.",
    "bidi_control": "Holds a character that turns the direction of writing. Take it out.",
    "zero_width": "Holds a character that nobody sees. Take it out.",
    "mojibake": "Text that was once decoded wrongly. Export it again as UTF-8.",
    "replacement_character": "A character was lost when the text was converted. Export it again.",
    "special_token": "Holds a special token of a chat template: the model would read it as one. Take it out.",
    "language_mix": "Prompt and answer are written in different scripts. Is that meant?",
    "secret": "Looks like a key, token or password. Make it invalid where it belongs, and take it out.",
    "personal_data": "Looks like an address, a number or an account of a person. May it be trained on?",
    "leak": "The same prompt or group stands in two splits. Give these rows one split, or leave `split` out.",
    "near_leak": "A training prompt has nearly the words of one in another split. Give both the same group.",
}
"""A rule of `validate.rules` → what was found or expected, and what to do."""

REPAIRS: Mapping[str, str] = {
    "lone_surrogate": "Halves of characters were taken out.",
    "control_character": "Control characters were taken out.",
    "carriage_return": r"Lines were made to end with \n.",
    "bidi_control": "Characters that turn the direction of writing were taken out.",
    "zero_width": "Characters that nobody sees were taken out.",
    "mojibake": "The text was decoded again.",
    "special_token": "Special tokens were taken out.",
    "secret": "A mark stands in place of keys, tokens and passwords.",
    "personal_data": "A mark stands in place of addresses, numbers and accounts.",
}
"""A rule that has a repair → what the repair did."""


def policy_of(rule: str, rules: ValidationRules) -> str:
    """The policy of a rule; faults of reading share one."""
    return str(getattr(rules, rule if rule in ADVICE else "readable"))


def severity_of(policy: str) -> Severity:
    """How bad a breach is under a policy other than `off`."""
    return "warning" if policy == "warn" else "error"
