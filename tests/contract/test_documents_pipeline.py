"""The blocks about the forward-backward pipeline, checkpoints and sampling run, and do what they say."""

import copy
from pathlib import Path

import pytest
import torch

from rlcore.models import load_causal_lm, load_tokenizer
from tests.support.documents import Page

TEXTS = ("What is AI?", "Gravity is a force between masses.")


@pytest.fixture
def tokenizer(models):
    return load_tokenizer(models["google/gemma-2-2b"])


@pytest.fixture
def model(models):
    return load_causal_lm(models["google/gemma-2-2b"])


@pytest.fixture
def batch(tokenizer):
    tokenizer.padding_side = "right"
    rows = tokenizer(list(TEXTS), padding=True, return_tensors="pt")
    labels = rows["input_ids"].masked_fill(rows["attention_mask"] == 0, -100)
    return {"input_ids": rows["input_ids"], "attention_mask": rows["attention_mask"], "labels": labels}


@pytest.fixture
def prepared(model, batch):
    """What the block about the pipeline leaves undefined."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, **batch}


@pytest.fixture
def running(module_page, prepared):
    """The names that the block about the pipeline leaves behind; its thread ends with the test."""
    names = module_page.run("pipeline", **prepared)
    yield names
    names["pipeline"].shutdown()


def weights_of(model):
    return {name: weight.detach().clone() for name, weight in model.state_dict().items()}


def test_pipeline(module_page: Page, prepared, capsys):
    before = copy.deepcopy(prepared["model"])
    names = module_page.run("pipeline", **prepared)
    pipeline, result = names["pipeline"], names["result"]
    batch = {name: prepared[name] for name in ("input_ids", "attention_mask", "labels")}
    # "cross_entropy": the mean over the labels, as the model itself computes it
    assert result.loss == pytest.approx(before(**batch).loss.item(), rel=1e-6)
    assert capsys.readouterr().out == f"Loss: {result.loss}\n"
    # One micro-batch of four: no step is due before the window is full, and none is made by halves.
    assert names["optim_result"].metrics["skipped"] == 1.0
    assert names["optim_result"].step == 0
    for _ in range(3):
        pipeline.forward_backward(**batch)
    step = pipeline.optim_step(prepared["optimizer"], scheduler=prepared["scheduler"], max_grad_norm=1.0).result()
    assert step.step == 1
    assert step.grad_norm > 0
    assert prepared["scheduler"].get_last_lr() == [pytest.approx(0.005)]
    assert any(not torch.equal(new, before.state_dict()[name]) for name, new in names["model"].state_dict().items())
    pipeline.shutdown()


def test_custom_loss(module_page: Page, prepared):
    weight = prepared["model"].get_output_embeddings().weight
    # Its gradient is the weight itself, and a window of four means divides by four.
    loss_tensor = weight.square().sum() / 2
    names = module_page.run("custom_loss", **prepared, loss_tensor=loss_tensor)
    assert names["future"].result().loss == pytest.approx(loss_tensor.item())
    names["pipeline"].shutdown()


def test_a_custom_loss_gets_its_parameters_and_trains(module_page: Page, running, batch):
    seen = {}

    def loss_of(model, inputs, outputs, **kwargs):
        seen.update(kwargs, inputs=sorted(inputs), is_the_model=model is running["model"])
        return outputs.logits.square().mean()

    before = weights_of(running["model"])
    pipeline = running["pipeline"]
    for _ in range(3):  # the pipeline block queued the first of the four
        pipeline.forward_backward_custom(
            input_ids=batch["input_ids"], custom_loss_fn=loss_of, attention_mask=batch["attention_mask"], my_param=42
        )
    assert pipeline.optim_step(running["optimizer"]).result().step == 1
    assert seen == {"my_param": 42, "inputs": ["attention_mask", "input_ids"], "is_the_model": True}
    assert any(not torch.equal(new, before[name]) for name, new in weights_of(running["model"]).items())


def test_client(module_page: Page, prepared, batch):
    reference = copy.deepcopy(prepared["model"])
    names = module_page.run("client", **prepared, batch=batch, reference_model=reference)
    # the reference's own logits, and what was queued before the shutdown is done
    expected = reference(**{name: batch[name] for name in ("input_ids", "attention_mask")}).logits
    real = batch["attention_mask"].bool()
    torch.testing.assert_close(names["ref_future"].result()["logits"][real], expected[real])
    assert not any(weight.requires_grad for weight in reference.parameters())
    assert names["fwd_future"].result().loss > 0
    assert names["optim_future"].result().metrics["skipped"] == 1.0
    names["client"].shutdown()  # once more does nothing


def test_checkpoint(module_page: Page, prepared):
    names = module_page.run("checkpoint", **prepared)
    info, pipeline = names["checkpoint_info"], names["pipeline"]
    assert set(info) == {"path", "model_path", "optimizer_path", "state_path"}
    assert all(Path(path).exists() for path in info.values())
    assert Path(info["path"]).resolve() == Path("checkpoints/checkpoint_1000").resolve()
    saved = weights_of(names["model"])
    with torch.no_grad():
        for weight in names["model"].parameters():
            weight.add_(1.0)
    pipeline.load_state("checkpoints/checkpoint_1000")
    assert all(torch.equal(weight, saved[name]) for name, weight in weights_of(names["model"]).items())
    pipeline.shutdown()


def test_sampling(module_page: Page, prepared, tokenizer, capsys):
    prompt = tokenizer("What is AI?")["input_ids"]
    names = module_page.run("sampling", **prepared, tokenizer=tokenizer, prompt_tokens=prompt)
    samples = names["samples"]
    assert set(samples) == {"tokens", "logprobs", "prompt"}
    assert list(samples["prompt"]) == prompt
    tokens, logprobs = list(samples["tokens"]), list(samples["logprobs"])
    assert 1 <= len(tokens) <= 100
    assert len(logprobs) == len(tokens)
    assert all(logprob <= 0 for logprob in logprobs)
    assert tokenizer.eos_token_id not in tokens[:-1]
    assert capsys.readouterr().out.splitlines()[-3:] == [
        f"Generated: {samples['tokens']}",
        f"Logprobs: {samples['logprobs']}",
        f"Prompt: {samples['prompt']}",
    ]
    from_tensor = names["pipeline"].sample(prompt=torch.tensor(prompt), max_tokens=3)
    assert list(from_tensor["prompt"]) == prompt
    names["pipeline"].shutdown()
