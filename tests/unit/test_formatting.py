"""Prompt and response as tokens: one border, one BOS, one end, the text unchanged."""

import copy

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from rlcore.errors import ConfigError, DataError
from rlcore.formatting import ChatFormat
from rlcore.scratch import train_tokenizer
from tests.support.tiny import blank_marking_tokenizer, tiny_tokenizer

TEXTS = ["", " ", " upon", "upon", "a\nb", "  two blanks ", "\n", "Zoë 😀\t7"]


def word_tokenizer(*, adds_end: bool = False, **special: str) -> PreTrainedTokenizerFast:
    """One token per word w0 .. w29; <s> is 1, </s> is 2, and the tokenizer writes <s> in front of each text."""
    words = ["<pad>", "<s>", "</s>", *(f"w{number}" for number in range(30))]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if "bos_token" in special:
        ending = " </s>" if adds_end else ""
        backend.post_processor = processors.TemplateProcessing(
            single=f"<s> $A{ending}", special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def words(count: int, start: int = 0) -> str:
    return " ".join(f"w{number}" for number in range(start, start + count))


PLAIN = {"pad_token": "<pad>", "eos_token": "</s>"}
WITH_BOS = {**PLAIN, "bos_token": "<s>"}


def test_the_template_and_the_pair_write_the_same_tokens():
    tokenizer = tiny_tokenizer()
    chat = ChatFormat(tokenizer)
    prompt, response = chat.encode_pair("What is 3 plus 4?", "Sure! The answer is 7.", max_length=64)
    messages = [
        {"role": "user", "content": "What is 3 plus 4?"},
        {"role": "assistant", "content": "Sure! The answer is 7."},
    ]
    assert prompt + response == tokenizer.apply_chat_template(messages, return_dict=False)
    assert prompt == chat.encode_prompt([messages[0]])
    assert response[-1] == chat.end_id
    assert response.count(chat.end_id) == 1


def test_prompt_and_response_are_what_the_template_writes_of_the_whole_chat():
    tokenizer = tiny_tokenizer()
    messages = [{"role": "user", "content": "Add 1 and 2."}, {"role": "assistant", "content": "3"}]
    prompt, response = ChatFormat(tokenizer).encode_pair("Add 1 and 2.", "3", max_length=64)
    assert tokenizer.apply_chat_template(messages, return_dict=False) == prompt + response


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("make", [tiny_tokenizer, blank_marking_tokenizer])
def test_responses_come_back_as_they_were(make, text):
    chat = ChatFormat(make())
    assert chat.decode_response([*chat.encode_response(text), chat.end_id, chat.pad_id]) == text


@pytest.mark.parametrize("text", TEXTS)
def test_a_response_apart_is_what_the_joint_text_gives(text):
    # "once" ends no merge, so cutting there moves no border: "<s> ▁once" + "▁upon" = tokens of "once upon"
    tokenizer = blank_marking_tokenizer()
    chat = ChatFormat(tokenizer)
    joint = tokenizer("once" + text)["input_ids"]
    assert chat.encode_prompt("once") + chat.encode_response(text) == joint
    assert tokenizer.decode(joint, skip_special_tokens=True) == "once" + text


def test_no_token_spans_the_border():
    # jointly "▁" + "u" + "p" merge into "▁up"; apart, the prompt keeps its blank and both responses share the prompt
    tokenizer = blank_marking_tokenizer()
    chat = ChatFormat(tokenizer)
    chosen = chat.encode_pair("once ", "up", max_length=32)
    rejected = chat.encode_pair("once ", "down", max_length=32)
    assert chosen[0] == rejected[0] == chat.encode_prompt("once ")
    assert tokenizer.convert_ids_to_tokens(chosen[1]) == ["u", "p", "<s>"]


def test_bos_comes_once_and_end_once():
    chat = ChatFormat(word_tokenizer(**WITH_BOS))
    # w2 is id 5, w4 is id 7: <s> w2 | w4 </s>
    assert chat.encode_pair("w2", "w4", max_length=10) == ([1, 5], [7, 2])
    assert chat.encode_pair("w2", "w4 </s>", max_length=10) == ([1, 5], [7, 2])


def test_an_end_token_that_the_tokenizer_appends_to_texts_does_not_end_the_prompt():
    chat = ChatFormat(word_tokenizer(adds_end=True, **WITH_BOS))
    assert chat.encode_pair("w2", "w4", max_length=10) == ([1, 5], [7, 2])


def test_a_tokenizer_without_bos_writes_none():
    chat = ChatFormat(word_tokenizer(**PLAIN))
    assert chat.bos_id is None
    assert chat.encode_pair("w2", "w4", max_length=10) == ([5], [7, 2])


def test_an_encoder_ends_with_its_separator():
    assert ChatFormat(word_tokenizer(pad_token="<pad>", sep_token="</s>")).end_id == 2


@pytest.mark.parametrize(
    ("prompt_words", "response_words", "kept_prompt", "kept_response"),
    [
        (6, 2, [3, 4, 5, 6, 7, 8], [13, 14, 2]),  # 6 + 3 = 9 fit: nothing is cut
        (6, 5, [4, 5, 6, 7, 8], [13, 14, 15, 16, 17]),  # the prompt keeps its last 5, the response its first 5
        (3, 11, [3, 4, 5], [13, 14, 15, 16, 17, 18, 19]),  # the prompt is short: 3 and 7
        (8, 2, [4, 5, 6, 7, 8, 9, 10], [13, 14, 2]),  # cutting 1 is enough, though 5 would be allowed
    ],
)
def test_a_pair_is_cut_no_more_than_it_must(prompt_words, response_words, kept_prompt, kept_response):
    chat = ChatFormat(word_tokenizer(**PLAIN))
    pair = chat.encode_pair(words(prompt_words), words(response_words, 10), max_length=10, max_prompt_length=5)
    assert pair == (kept_prompt, kept_response)


def test_a_cut_prompt_keeps_its_bos():
    # <s> and 6 words, 5 may stay: <s> and the last 4
    chat = ChatFormat(word_tokenizer(**WITH_BOS))
    prompt, response = chat.encode_pair(words(6), words(8, 10), max_length=10, max_prompt_length=5)
    assert prompt == [1, 5, 6, 7, 8]
    assert len(response) == 5
    assert chat.cut_prompt([1, 5, 6], 1) == [6]


def test_by_default_the_prompt_keeps_half_of_the_room():
    chat = ChatFormat(word_tokenizer(**PLAIN))
    prompt, response = chat.encode_pair(words(9), words(15, 10), max_length=10)
    assert (len(prompt), len(response)) == (5, 5)


@pytest.mark.parametrize("max_prompt_length", [0, 8, 9])
def test_both_sides_keep_a_token_or_the_setting_is_refused(max_prompt_length):
    chat = ChatFormat(word_tokenizer(**PLAIN))
    with pytest.raises(ConfigError, match="max_prompt_length"):
        chat.encode_pair(words(8), words(3), max_length=8, max_prompt_length=max_prompt_length)
    prompt, response = chat.encode_pair(words(20), words(9), max_length=2)
    assert (len(prompt), len(response)) == (1, 1)


def test_special_tokens_of_the_response_stay_in_its_text():
    tokenizer = train_tokenizer(["a b"], 270)
    tags = ["<think>", "</think>", "<answer>", "</answer>"]
    tokenizer.add_special_tokens({"additional_special_tokens": tags})
    chat = ChatFormat(tokenizer)
    text = "<think>a</think><answer>b</answer>"
    ids = chat.encode_response(text)
    assert [token for token in tokenizer.convert_ids_to_tokens(ids) if token in tags] == tags
    assert chat.decode_response([*ids, chat.end_id, chat.pad_id, chat.pad_id]) == text


def test_the_response_is_cut_out_by_tokens_whatever_the_prompt_holds():
    chat = ChatFormat(blank_marking_tokenizer())
    prompt, response = chat.encode_pair("Hi  there", " ok", max_length=12, max_prompt_length=3)
    assert chat.decode_response((prompt + response)[len(prompt) :]) == " ok"


def test_an_end_token_as_padding_is_fine_and_none_at_all_is_not():
    assert ChatFormat(word_tokenizer(pad_token="</s>", eos_token="</s>")).pad_id == 2
    with pytest.raises(ConfigError, match="no padding token"):
        ChatFormat(word_tokenizer(eos_token="</s>"))
    with pytest.raises(ConfigError, match="no end token"):
        ChatFormat(word_tokenizer(pad_token="<pad>"))


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "hi"}, {"role": "system", "content": "be brief"}],
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}],
        [],
    ],
)
def test_messages_that_are_no_prompt_are_refused(messages):
    with pytest.raises(DataError):
        ChatFormat(tiny_tokenizer()).encode_prompt(messages)


SYSTEM = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
IGNORING = "{% for m in messages %}{% if m['role'] != 'system' %}<{{ m['content'] }}>{% endif %}{% endfor %}"
SHOWING = "{% for m in messages %}<{{ m['content'] }}>{% endfor %}"


@pytest.mark.parametrize("template", [tiny_tokenizer().chat_template, IGNORING], ids=["refuses", "ignores"])
def test_a_system_message_that_the_template_does_not_show_is_put_in_front_of_the_question_with_one_warning(
    template, caplog
):
    tokenizer = copy.deepcopy(tiny_tokenizer())
    tokenizer.chat_template = template
    chat = ChatFormat(tokenizer)
    folded = chat.encode_prompt("be brief\n\nhi")
    assert chat.encode_prompt(SYSTEM) == chat.encode_prompt(SYSTEM) == folded
    more = [{"role": "assistant", "content": "ho"}, {"role": "user", "content": "hey"}]
    whole = [{"role": "user", "content": "be brief\n\nhi"}, *more]
    assert chat.encode_prompt([*SYSTEM, *more]) == chat.encode_prompt(whole)
    assert [message[:38] for message in caplog.messages] == ["The chat template knows no system role"]


def test_a_system_message_that_the_template_shows_stays_where_it_is(caplog):
    tokenizer = copy.deepcopy(tiny_tokenizer())
    tokenizer.chat_template = SHOWING
    ids = ChatFormat(tokenizer).encode_prompt(SYSTEM)
    assert tokenizer.decode(ids) == "<be brief><hi>"
    assert caplog.messages == []


def test_messages_need_a_template():
    with pytest.raises(DataError, match="no chat template"):
        ChatFormat(word_tokenizer(**PLAIN)).encode_prompt([{"role": "user", "content": "w1"}])


def test_a_prompt_without_any_token_is_refused():
    with pytest.raises(DataError, match="without a token"):
        ChatFormat(word_tokenizer(**PLAIN)).encode_prompt("")
    assert ChatFormat(word_tokenizer(**WITH_BOS)).encode_prompt("") == [1]


def test_a_word_piece_response_starts_a_word():
    backend = Tokenizer(models.WordPiece({"<pad>": 0, "</s>": 1, "un": 2, "##do": 3, "do": 4}, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.WordPiece()
    chat = ChatFormat(PreTrainedTokenizerFast(tokenizer_object=backend, **PLAIN))
    assert chat.encode_pair("un", "do", max_length=8) == ([2], [4, 1])


@pytest.mark.parametrize(
    ("prompt", "match"),
    [
        ([{"role": "user"}], "Message 0: found .*'role': 'user'.* expected a `role` and a `content`, both text"),
        ([{"role": "user", "content": None}], "Message 0"),
        ([{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "Message 0"),
        ([{"role": "system", "content": "Be kind."}, {"content": "hi"}], "Message 1"),
        ([{"role": "user", "content": "hi"}, "hi"], "Message 1"),
        (None, "Found None as a prompt, expected text or chat messages"),
        ({"role": "user", "content": "hi"}, "as a prompt"),
    ],
)
def test_messages_are_role_and_text(prompt, match):
    with pytest.raises(DataError, match=match):
        ChatFormat(tiny_tokenizer()).encode_prompt(prompt)


# half of a character of two UTF-16 units, as cutting JSON or JavaScript text leaves it
LONE = "caf\ud83d"


@pytest.mark.parametrize("prompt", [LONE, [{"role": "user", "content": LONE}]])
def test_a_prompt_with_a_lone_surrogate_is_refused(prompt):
    with pytest.raises(DataError, match=r"U\+D83D at position 3, .* mend that text"):
        ChatFormat(tiny_tokenizer()).encode_prompt(prompt)


@pytest.mark.parametrize("make", [tiny_tokenizer, blank_marking_tokenizer])
def test_a_response_with_a_lone_surrogate_is_refused(make):
    with pytest.raises(DataError, match=r"U\+D83D"):
        ChatFormat(make()).encode_response(LONE)


def test_without_a_template_a_lone_surrogate_is_refused_too():
    with pytest.raises(DataError, match=r"U\+D83D"):
        ChatFormat(word_tokenizer(**WITH_BOS)).encode_prompt(LONE)


def test_a_response_is_text():
    with pytest.raises(DataError, match="Found None, expected text"):
        ChatFormat(tiny_tokenizer()).encode_response(None)


@pytest.mark.parametrize("token", [-1, 10**20])
def test_token_ids_that_no_tokenizer_has_are_not_decoded(token):
    with pytest.raises(DataError, match=f"token id {token}"):
        ChatFormat(tiny_tokenizer()).decode_response([5, token])
