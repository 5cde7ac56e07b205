"""Policy, critic and reference: what they say about responses, and how they adapt."""

import copy

import pytest
import torch
from torch import nn
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaForCausalLM,
)

from rlcore.batches import join
from rlcore.configs import LoraConfig
from rlcore.errors import ConfigError
from rlcore.functional.masking import position_ids_from
from rlcore.models import (
    PPOModel,
    ValueHead,
    add_lora,
    context_length,
    evaluation_mode,
    frozen_copy,
    language_model_of,
    load_causal_lm,
    reference_of,
    sampled_logprobs,
    sampled_logprobs_and_detached_entropy,
    save_causal_lm,
    value_head_of,
)
from tests.support.tiny import PAD_ID, tiny_gemma2, tiny_gpt2, tiny_llama, tiny_qwen2, tiny_tokenizer

FAMILIES = [tiny_llama, tiny_gpt2, tiny_qwen2, tiny_gemma2]
PROMPTS = [[5, 9, 11, 20, 7], [6], [8, 13, 40]]
RESPONSES = [[10, 3], [12, 14, 21, 30, 16, 3], [17, 18, 19]]


def critic(model) -> PPOModel:
    """A policy whose critic says something else than 0."""
    policy = PPOModel(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        nn.init.normal_(policy.value_head.output.weight)
    return policy.eval()


def changed_adapters(model):
    """Adapters that are no longer the identity."""
    adapted = add_lora(model, LoraConfig(rank=2, alpha=4))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(2)
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_()
    return adapted


def batch():
    return join(PROMPTS, RESPONSES, PAD_ID)


def test_a_new_critic_says_zero():
    head = ValueHead(8)
    assert (head.dense.out_features, head.output.in_features) == (16, 16)
    values = head(torch.randn(2, 3, 8, dtype=torch.bfloat16))
    assert values.shape == (2, 3)
    assert values.dtype == torch.float32
    assert values.abs().max() == 0


def test_a_critic_is_two_layers_with_a_relu():
    # hidden (1, -2) -> dense (1, -2, 3, 0) -> relu (1, 0, 3, 0) -> 1 * 1 + 2 * 3 + 0.5 = 7.5
    head = ValueHead(2)
    with torch.no_grad():
        head.dense.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, -1.0], [0.0, 0.0]]))
        head.dense.bias.zero_()
        head.output.weight.copy_(torch.tensor([[1.0, 5.0, 2.0, 5.0]]))
        head.output.bias.fill_(0.5)
    assert head(torch.tensor([1.0, -2.0])).item() == 7.5


@pytest.mark.parametrize("make", FAMILIES)
def test_the_wrapper_gives_the_logits_of_the_model(make):
    model = make()
    sequences = batch()
    outputs = critic(model)(sequences.input_ids, sequences.attention_mask, return_value=True)
    expected = model(
        input_ids=sequences.input_ids,
        attention_mask=sequences.attention_mask,
        position_ids=position_ids_from(sequences.attention_mask),
    ).logits
    real = sequences.attention_mask.bool()
    torch.testing.assert_close(outputs["logits"][real], expected[real])
    assert outputs["values"].shape == sequences.input_ids.shape
    assert set(critic(model)(sequences.input_ids)) == {"logits"}


@pytest.mark.parametrize("make", FAMILIES)
def test_response_outputs_are_those_of_each_row_alone_by_hand(make):
    model = make()
    policy = critic(model)
    outputs = policy.response_outputs(batch(), temperature=0.7)
    bootstrap = policy.bootstrap_values(batch())
    for row, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        alone = policy(torch.tensor([prompt + response]), return_value=True)
        logits, values = alone["logits"][0] / 0.7, alone["values"][0]
        first, length = len(prompt) - 1, len(response)
        logprobs = logits.log_softmax(-1)[first : first + length]
        picked = logprobs[range(length), response]
        torch.testing.assert_close(outputs.logprobs[row, :length], picked, rtol=0, atol=1e-5)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        torch.testing.assert_close(outputs.entropy[row, :length], entropy, rtol=0, atol=1e-5)
        torch.testing.assert_close(outputs.values[row, :length], values[first : first + length], rtol=0, atol=1e-5)
        torch.testing.assert_close(bootstrap[row], values[-1], rtol=0, atol=1e-5)
    for padding in (outputs.logprobs, outputs.entropy, outputs.values):
        assert padding.shape == (3, 6)
        assert padding[~batch().response_mask].abs().max() == 0


def test_tokens_of_others_inside_a_response_are_read_but_not_measured():
    # in the second response the policy wrote tokens 0, 1, 4 and 5; in the third one, which was cut, only the first
    marks = [[True, True], [True, True, False, False, True, True], [True, False, False]]
    policy, whole = critic(tiny_llama()), batch()
    holed = join(PROMPTS, RESPONSES, PAD_ID, marks)
    assert torch.equal(holed.input_ids, whole.input_ids)
    assert torch.equal(holed.attention_mask, whole.attention_mask)
    outputs, expected = policy.response_outputs(holed, 0.7), policy.response_outputs(whole, 0.7)
    for name in ("logprobs", "entropy", "values"):
        torch.testing.assert_close(getattr(outputs, name), getattr(expected, name).where(holed.response_mask, 0.0))
    # what follows the last token is expected behind the last token, whoever wrote it
    torch.testing.assert_close(policy.bootstrap_values(holed), policy.bootstrap_values(whole))


def test_a_language_model_alone_says_what_it_says_beside_a_critic():
    model = tiny_llama()
    policy = critic(model)
    assert language_model_of(policy) is language_model_of(model) is model
    assert value_head_of(policy) is policy.value_head
    assert value_head_of(model) is None
    expected = policy.response_outputs(batch(), 0.7)
    logprobs, entropy = sampled_logprobs_and_detached_entropy(model, batch(), 0.7)
    torch.testing.assert_close(logprobs, expected.logprobs)
    torch.testing.assert_close(entropy, expected.entropy)
    assert logprobs.requires_grad
    assert not entropy.requires_grad
    torch.testing.assert_close(sampled_logprobs(model, batch(), 0.7), expected.logprobs)


def test_an_entropy_without_gradient_is_the_same_number_and_moves_nothing():
    policy = critic(tiny_llama())
    attached, detached = (
        policy.response_outputs(batch(), 0.7),
        policy.response_outputs_with_detached_entropy(batch(), 0.7),
    )
    for name in ("logprobs", "entropy", "values"):
        assert torch.equal(getattr(attached, name), getattr(detached, name))
    assert attached.entropy.requires_grad
    assert detached.logprobs.requires_grad
    assert not detached.entropy.requires_grad


def test_the_context_is_the_configs_and_adapters_do_not_hide_it():
    assert context_length(tiny_llama()) == 64
    # GPT-2 calls it n_positions
    assert context_length(tiny_gpt2(n_positions=32)) == 32
    assert context_length(add_lora(tiny_llama(), LoraConfig(rank=2))) == 64
    # Bloom's positions have no end
    shape = BloomConfig(vocab_size=48, hidden_size=16, n_layer=1, n_head=2)
    assert context_length(BloomForCausalLM(shape)) is None


@pytest.mark.parametrize("make", FAMILIES)
def test_a_selection_gives_what_the_whole_batch_gave(make):
    policy = critic(make())
    index = torch.tensor([2, 1])
    whole, part = policy.response_outputs(batch(), 1.0), policy.response_outputs(batch().select(index), 1.0)
    torch.testing.assert_close(part.logprobs, whole.logprobs[index], rtol=0, atol=1e-5)
    torch.testing.assert_close(part.values, whole.values[index], rtol=0, atol=1e-5)


def test_what_stands_on_padding_changes_nothing():
    policy = critic(tiny_llama())
    sequences = batch()
    other = join(PROMPTS, RESPONSES, pad_id=33)
    assert torch.equal(policy.response_outputs(sequences, 1.0).logprobs, policy.response_outputs(other, 1.0).logprobs)


def test_gradients_reach_trunk_and_critic_and_warm_up_reaches_the_critic_alone():
    policy = critic(tiny_llama())
    outputs = policy.response_outputs(batch(), 1.0)
    (outputs.logprobs.sum() + outputs.entropy.sum() + outputs.values.sum()).backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in policy.parameters())
    policy.zero_grad(set_to_none=True)
    warming = policy.response_outputs_with_detached_trunk(batch(), 1.0)
    for name in ("logprobs", "entropy", "values"):
        torch.testing.assert_close(getattr(warming, name), getattr(outputs, name))
    warming.values.sum().backward()
    assert all(weight.grad is None for weight in policy.base_model.parameters())
    assert all(weight.grad is not None for weight in policy.value_head.parameters())


def test_logits_that_the_model_divides_are_divided():
    config = GraniteConfig(
        vocab_size=48, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, logits_scaling=3.0, initializer_range=0.5,
        bos_token_id=None, eos_token_id=3, pad_token_id=0,
    )  # fmt: skip
    model = GraniteForCausalLM(config).eval()
    ids = torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(PPOModel(model)(ids)["logits"], model(ids).logits)


class ShiftedLlama(LlamaForCausalLM):
    """Does something to its logits that nobody could guess."""

    def forward(self, *args, **kwargs):
        """Logits that depend on the id."""
        outputs = super().forward(*args, **kwargs)
        outputs.logits = outputs.logits + torch.arange(outputs.logits.shape[-1])
        return outputs


def test_logits_of_unknown_making_are_refused():
    with pytest.raises(ConfigError, match="ShiftedLlama"):
        PPOModel(ShiftedLlama(tiny_llama().config).eval())


def test_adapters_are_merged_on_saving_and_stay_in_the_model(tmp_path):
    adapted = changed_adapters(tiny_llama())
    ids = torch.tensor([[5, 6, 7]])
    before = adapted(ids).logits
    save_causal_lm(adapted, tiny_tokenizer(), tmp_path)
    torch.testing.assert_close(load_causal_lm(tmp_path)(ids).logits, before, rtol=1e-4, atol=1e-5)
    assert torch.equal(adapted(ids).logits, before)


@pytest.mark.parametrize("make", FAMILIES)
def test_adapters_start_as_no_change_and_train_alone(make):
    model = make()
    ids = torch.tensor([[5, 6, 7]])
    before = model(ids).logits
    adapted = add_lora(model, LoraConfig(rank=2))
    torch.testing.assert_close(adapted(ids).logits, before)
    trained = [name for name, weight in adapted.named_parameters() if weight.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)


def test_the_reference_of_adapters_is_the_base_and_comes_back_off_even_after_an_error():
    base = tiny_llama()
    expected = critic(copy.deepcopy(base)).response_outputs(batch(), 1.0).logprobs
    policy = critic(changed_adapters(base)).train()
    with reference_of(policy) as reference:
        assert not reference.training
        torch.testing.assert_close(reference.response_outputs(batch(), 1.0).logprobs, expected)
    with pytest.raises(KeyError), reference_of(policy):
        raise KeyError
    assert policy.training
    assert (policy.response_outputs(batch(), 1.0).logprobs - expected).abs().max() > 0.1


def test_a_model_without_adapters_is_no_reference_of_itself():
    with pytest.raises(ConfigError, match="without adapters"), reference_of(PPOModel(tiny_llama())):
        pass


def test_adapters_need_modules_that_exist():
    with pytest.raises(ConfigError, match="target_modules"):
        add_lora(tiny_llama(), LoraConfig(target_modules=("nothing_of_that_name",)))


def test_adapters_are_not_put_upon_adapters():
    with pytest.raises(ConfigError, match="a model that has some already"):
        add_lora(changed_adapters(tiny_llama()), LoraConfig(rank=2))


def test_a_frozen_copy_is_another_model_that_never_learns():
    model = tiny_gpt2().train()
    frozen = frozen_copy(model)
    assert not frozen.training
    assert not any(weight.requires_grad for weight in frozen.parameters())
    assert model.training
    assert all(weight.requires_grad for weight in model.parameters())
    assert frozen.transformer.wte.weight.data_ptr() != model.transformer.wte.weight.data_ptr()


def test_evaluation_mode_gives_each_module_its_own_mode_back():
    model = nn.Sequential(nn.Dropout(), nn.Dropout()).train()
    model[1].eval()
    with evaluation_mode(model):
        assert not model[0].training
    with pytest.raises(KeyError), evaluation_mode(model):
        raise KeyError
    assert (model.training, model[0].training, model[1].training) == (True, True, False)
