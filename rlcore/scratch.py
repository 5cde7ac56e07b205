"""A small Llama from nothing: a tokenizer trained on the demonstrations and random weights."""

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rlcore.configs import ScratchModelConfig
from rlcore.errors import ConfigError
from rlcore.models import seeded

PAD, USER, ASSISTANT, END = "<pad>", "<|user|>", "<|assistant|>", "<|end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}" + USER + "{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}" + ASSISTANT + "{{ message['content'] }}" + END + "{% else %}"
    "{{ raise_exception('Expected the role user or assistant, not ' ~ message['role'] ~ '.') }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}" + ASSISTANT + "{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE (Sennrich et al. 2016) with single digits and a chat template.

    Any text round-trips: all 256 bytes are in the vocabulary. The padding token is not the end token.

    Args:
        texts: what the merges are learnt from.
        vocab_size: upper limit, special tokens included; few texts yield fewer tokens.

    Raises:
        ConfigError: vocab_size has no room for the bytes and the special tokens.
    """
    special_tokens = [PAD, USER, ASSISTANT, END]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocab_size < len(alphabet) + len(special_tokens):
        raise ConfigError(
            f"vocab_size={vocab_size}: expected at least {len(alphabet) + len(special_tokens)}, "
            "for the bytes and the special tokens. Raise it."
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special_tokens, initial_alphabet=sorted(alphabet), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def build_model(config: ScratchModelConfig, tokenizer: PreTrainedTokenizerBase, seed: int) -> LlamaForCausalLM:
    """Llama with rotary positions, tied embeddings and random weights that depend on the seed alone."""
    llama_config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_heads,
        max_position_embeddings=config.max_positions,
        initializer_range=config.initializer_range,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with seeded(seed):
        return LlamaForCausalLM(llama_config)
