"""What the oracle cases call each quantity, and what rlcore does. An adapter renames and calls rlcore, no more."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from rlcore.functional import advantages, kl, logprobs, losses, masking
from rlcore.functional.filtering import filter_probabilities
from rlcore.kl_control import AdaptiveKLController
from rlcore.reward_functions import answers_equal
from rlcore.stop_sequences import match_stop

Adapter = Callable[[dict, dict], dict]
"""From the inputs and params of a case to quantities by name."""


def tensor(values: object) -> Tensor:
    """Nested lists as float64; null is NaN, "-inf" and "inf" are numbers."""
    if isinstance(values, Tensor):
        return values.double()
    return torch.tensor(_numbers(values), dtype=torch.float64)


def _numbers(values: object) -> object:
    if isinstance(values, list):
        return [_numbers(value) for value in values]
    return math.nan if values is None else float(values)


def mask(values: list) -> Tensor:
    return torch.tensor(values, dtype=torch.bool)


def gradient(scalar: Tensor, leaf: Tensor) -> Tensor:
    (result,) = torch.autograd.grad(scalar, leaf, retain_graph=True)
    return result


def grouped(groups: list[list]) -> tuple[Tensor, Tensor]:
    """Rows of scores as one row [B], and the group of each."""
    ids = [index for index, group in enumerate(groups) for _ in group]
    return tensor([score for group in groups for score in group]), torch.tensor(ids)


def predicting_states(logits: Tensor) -> Tensor:
    """Logits [T, V] as the states [1, T + 1, V] of one row whose head is the identity."""
    return torch.cat([logits, torch.zeros_like(logits[:1])]).unsqueeze(0)


def gae_masked(inputs: dict, params: dict) -> dict:
    found = advantages.gae(
        tensor(inputs["rewards"]), tensor(inputs["values"]), mask(inputs["mask"]), tensor(inputs["bootstrap"]), **params
    )
    return dict(zip(["advantages", "returns"], found, strict=True))


def gae_flat(inputs: dict, params: dict) -> dict:
    steps = [tensor(inputs[name]) for name in ("rewards", "values", "next_values")]
    found = advantages.gae_flat(*steps, mask(inputs["terminated"]), mask(inputs["truncated"]), **params)
    return dict(zip(["advantages", "returns"], found, strict=True))


def reward_shaping(inputs: dict, params: dict) -> dict:
    penalty = kl.k1(tensor(inputs["logp"]), tensor(inputs["ref_logp"]))
    return {"rewards": advantages.token_rewards(penalty, tensor(inputs["scores"]), mask(inputs["mask"]), **params)}


def kl_estimators(inputs: dict, params: dict) -> dict:
    if "policy_logits" in inputs:
        return exact_kl(tensor(inputs["policy_logits"]), tensor(inputs["ref_logits"]))
    pair = tensor(inputs["logp"]), tensor(inputs["ref_logp"])
    found = {name: getattr(kl, name)(*pair) for name in ("k1", "k2", "k3")}
    real = mask(inputs["mask"])
    means = {f"{name}_masked_mean": masking.masked_mean(value, real) for name, value in found.items()}
    sums = {f"{name}_masked_sum": kl.sequence_kl(value, real) for name, value in found.items()}
    return found | means | sums


def exact_kl(policy_logits: Tensor, ref_logits: Tensor) -> dict:
    ids = torch.arange(len(policy_logits))
    policy, reference = (logprobs.token_logprobs(x.expand(len(x), -1), ids) for x in (policy_logits, ref_logits))
    means = {
        f"expected_{name}": (policy.exp() * getattr(kl, name)(policy, reference)).sum() for name in ("k1", "k2", "k3")
    }
    return means | {"exact_kl": means["expected_k1"]}


def adaptive_kl(inputs: dict, params: dict) -> dict:
    controller = AdaptiveKLController(params["init_coef"], params["target"], params["horizon"])
    return {"coefs": [controller.update(current, n_steps) for current, n_steps in inputs["updates"]]}


def ppo_policy(inputs: dict, params: dict) -> dict:
    new = tensor(inputs["logp"]).requires_grad_()
    old, real = tensor(inputs["old_logp"]), mask(inputs["mask"])
    arguments = (new, old, tensor(inputs["advantages"]), real)
    per_token = losses.ppo_token_losses(*arguments, clip_ratio=params["clip"])
    loss = losses.ppo_policy_loss(*arguments, clip_ratio=params["clip"])
    return {
        "per_token": per_token,
        "loss_token_mean": loss,
        "loss_seq_mean": losses.sequence_mean(per_token, real),
        "ratio_mean": masking.masked_mean(losses.probability_ratio(new, old, real), real),
        "clip_fraction": losses.clip_fraction(*arguments, clip_ratio=params["clip"]),
        "approx_kl_k1": masking.masked_mean(kl.k1(old, new), real),
        "approx_kl_k3": masking.masked_mean(kl.k3(old, new), real),
        "grad_logp": gradient(loss, new),
    }


def value_loss(inputs: dict, params: dict) -> dict:
    arguments = [tensor(inputs[name]) for name in ("values", "old_values", "returns")] + [mask(inputs["mask"])]
    clipped = losses.clipped_value_loss(*arguments, value_clip=params["clip"])
    return {
        "half_mse_clipped": clipped,
        "mse_clipped": 2 * clipped,
        "half_mse_unclipped": losses.clipped_value_loss(*arguments, value_clip=None),
        "clip_fraction": losses.value_clip_fraction(*arguments, value_clip=params["clip"]),
    }


def whiten(inputs: dict, params: dict) -> dict:
    x, real = tensor(inputs["x"]), mask(inputs["mask"])
    return {
        "shift_true_ddof0": masking.whiten(x, real, params["eps"]),
        "shift_false_ddof0": masking.scale_to_unit_std(x, real, params["eps"]),
        "mean": masking.masked_mean(x, real),
        "var_ddof0": masking.masked_var(x, real),
    }


def entropy(inputs: dict, params: dict) -> dict:
    return {"entropy": logprobs.entropy(tensor(inputs["logits"]), **params)}


def response_entropy(inputs: dict, params: dict) -> dict:
    logits = tensor(inputs["logits"])
    ids = torch.zeros(1, len(logits), dtype=torch.int64)
    _, found = logprobs.response_logprobs_and_entropy(predicting_states(logits), nn.Identity(), ids, **params)
    return {"entropy": found[0]}


def importance_sampling(inputs: dict, params: dict) -> dict:
    new, real = tensor(inputs["logp"]).requires_grad_(), mask(inputs["mask"])
    arguments = (new, tensor(inputs["old_logp"]), tensor(inputs["advantages"]), real)
    loss = losses.importance_sampling_loss(*arguments)
    return {
        "per_token": losses.importance_sampling_token_losses(*arguments),
        "loss_token_mean": loss,
        "loss_sum": losses.importance_sampling_loss(*arguments, token_count=1),
        "grad_logp_token_mean": gradient(loss, new),
    }


def dpo(inputs: dict, params: dict) -> dict:
    beta, smoothing = params["beta"], params["label_smoothing"]
    inputs = inputs or dict.fromkeys(("policy_chosen", "policy_rejected", "ref_chosen", "ref_rejected"), [-1.0])
    chosen, rejected = (tensor(inputs[f"policy_{side}"]).requires_grad_() for side in ("chosen", "rejected"))
    if params["reference_free"]:
        references = torch.zeros_like(chosen), torch.zeros_like(rejected)
        loss = losses.reference_free_dpo_loss(chosen, rejected, beta=beta, label_smoothing=smoothing)
    else:
        references = tensor(inputs["ref_chosen"]), tensor(inputs["ref_rejected"])
        loss = losses.dpo_loss(chosen, rejected, *references, beta=beta, label_smoothing=smoothing)
    rewards = [losses.implicit_rewards(*pair, beta=beta) for pair in zip((chosen, rejected), references, strict=True)]
    return {
        "losses": losses.dpo_pair_losses(*rewards, label_smoothing=smoothing),
        "loss": loss,
        "chosen_rewards": rewards[0],
        "rejected_rewards": rewards[1],
        "margins": rewards[0] - rewards[1],
        "accuracy_strict": losses.preference_accuracy(*rewards),
        "grad_policy_chosen_logp": gradient(loss, chosen),
        "grad_policy_rejected_logp": gradient(loss, rejected),
    }


def bradley_terry(inputs: dict, params: dict) -> dict:
    if "center_coef" in params:
        pair = tensor(inputs["chosen"]), tensor(inputs["rejected"])
        return {"penalty": losses.centering_penalty(*pair, coef=params["center_coef"])}
    first, second, first_wins = tensor(inputs["reward_a"]), tensor(inputs["reward_b"]), mask(inputs["labels"])
    chosen, rejected = torch.where(first_wins, first, second), torch.where(first_wins, second, first)
    margin = tensor(inputs["margin"]) if "margin" in inputs else 0.0
    return {
        "losses": losses.bradley_terry_pair_losses(chosen, rejected, margin),
        "loss": losses.bradley_terry_loss(chosen, rejected, margin),
        "prob_a_preferred": losses.preference_probability(first, second),
        "accuracy_strict": losses.preference_accuracy(chosen, rejected),
        "ties": losses.preference_ties(chosen, rejected),
    }


def labelled_preferences(inputs: dict, params: dict) -> dict:
    found = bradley_terry(inputs, params)
    if "labels" in inputs and "margin" not in inputs:
        labelled = [tensor(inputs[name]) for name in ("reward_a", "reward_b", "labels")]
        found["losses"] = losses.preference_label_losses(*labelled)
        found["loss"] = losses.preference_label_loss(*labelled)
    return found


def orpo(inputs: dict, params: dict) -> dict:
    chosen, rejected = tensor(inputs["chosen_avg_logp"]).requires_grad_(), tensor(inputs["rejected_avg_logp"])
    nll, weight = tensor(inputs["chosen_nll"]), params["lam"]
    loss = losses.orpo_loss(chosen, rejected, nll, odds_coef=weight)
    return {
        "log_odds_ratio": losses.log_odds_ratio(chosen, rejected),
        "or_losses": losses.orpo_pair_losses(chosen, rejected, torch.zeros_like(nll), odds_coef=1.0),
        "loss_per_pair": losses.orpo_pair_losses(chosen, rejected, nll, odds_coef=weight),
        "loss": loss,
        "gradient": gradient(loss, chosen),
    }


def grpo_adv(inputs: dict, params: dict) -> dict:
    options = {"scaling": params["scale"], "correction": params["ddof"], "epsilon": params["eps"]}
    scores, group_ids = grouped(inputs["groups"])
    found = advantages.group_relative_advantages(scores, group_ids, **options)
    return {"advantages": found.view(len(inputs["groups"]), -1)}


def rloo(inputs: dict, params: dict) -> dict:
    found = advantages.leave_one_out_advantages(*grouped(inputs["groups"]))
    return {"advantages": found.split([len(group) for group in inputs["groups"]])}


def loss_aggregation(inputs: dict, params: dict) -> dict:
    per_token, real = tensor(inputs["per_token"]), mask(inputs["mask"])
    return {
        "sequence_mean_then_batch_mean": losses.sequence_mean(per_token, real),
        "token_mean": losses.token_mean(per_token, real),
        "constant_length": losses.constant_length_mean(per_token, real, max_length=params["max_completion_length"]),
    }


def filtering(inputs: dict, params: dict) -> dict:
    logits = tensor(inputs.get("logits", [0.0, 1.0]))
    found = filter_probabilities(logits, **({"temperature": 1.0, "top_k": 0, "top_p": 1.0} | params))
    return {"probs": found, "kept": found.nonzero().flatten()}


def selective_logp(inputs: dict, params: dict) -> dict:
    return {"logp": logprobs.token_logprobs(tensor(inputs["logits"]), torch.tensor(inputs["ids"]), **params)}


def response_logp(inputs: dict, params: dict) -> dict:
    hidden, ids = predicting_states(tensor(inputs["logits"])), torch.tensor([inputs["ids"]])
    return {"logp": logprobs.response_logprobs(hidden, nn.Identity(), ids, **params)[0]}


def response_logp_row_by_row(inputs: dict, params: dict) -> dict:
    hidden, ids = predicting_states(tensor(inputs["logits"])), torch.tensor([inputs["ids"]])
    found, _ = logprobs.response_logprobs_and_detached_entropy(hidden, nn.Identity(), ids, max_logit_bytes=1, **params)
    return {"logp": found[0]}


def sequence_logp(inputs: dict, params: dict) -> dict:
    sums, counts = logprobs.sequence_logprobs(tensor(inputs["logits"]), torch.tensor(inputs["labels"]))
    return {"sum": sums, "average": sums / counts.clamp(min=1), "n_tokens": counts}


def pooling(inputs: dict, params: dict) -> dict:
    return {"pooled": masking.POOLINGS[params["strategy"]](tensor(inputs["hidden"]), mask(inputs["mask"]))}


def grad_accum(inputs: dict, params: dict) -> dict:
    if "sample_gradients" in inputs:
        windows = tensor(inputs["sample_gradients"]).split(params["accumulation_steps"])
        steps = [sum(micro_batch_loss(row, len(window)) for row in window.split(1)) for window in windows]
        return {"optimizer_steps": len(steps), "step_gradients": steps}
    micro_batches = [tensor(row) for row in inputs["token_losses_per_microbatch"]]
    token_count = sum(len(row) for row in micro_batches)
    return {"loss": sum(micro_batch_loss(row, token_count) for row in micro_batches)}


def micro_batch_loss(row: Tensor, token_count: int) -> Tensor:
    """The mean over one micro-batch of a larger step. A loss and its gradient divide alike."""
    return losses.token_mean(row, torch.ones_like(row, dtype=torch.bool), token_count)


def math_answer(inputs: dict, params: dict) -> dict:
    return {"equal": answers_equal(**inputs)}


def stop_sequence(inputs: dict, params: dict) -> dict:
    return dict(zip(["text", "stop_after_piece"], match_stop(**inputs), strict=True))


ADAPTERS: dict[str, tuple[Adapter, ...]] = {
    "adaptive_kl": (adaptive_kl,),
    "bradley_terry": (bradley_terry, labelled_preferences),
    "dpo": (dpo,),
    "entropy": (entropy, response_entropy),
    "filter": (filtering,),
    "gae_flat": (gae_flat,),
    "gae_masked": (gae_masked,),
    "grad_accum": (grad_accum,),
    "grpo_adv": (grpo_adv,),
    "importance_sampling": (importance_sampling,),
    "kl": (kl_estimators,),
    "loss_aggregation": (loss_aggregation,),
    "math_answer": (math_answer,),
    "orpo": (orpo,),
    "pooling": (pooling,),
    "ppo_policy": (ppo_policy,),
    "reward_shaping": (reward_shaping,),
    "rloo": (rloo,),
    "selective_logp": (selective_logp, response_logp, response_logp_row_by_row),
    "sequence_logp": (sequence_logp,),
    "stop_sequence": (stop_sequence,),
    "value_loss": (value_loss,),
    "whiten": (whiten,),
}
"""The ways through rlcore for each kind of case."""
