"""One run of a TRL trainer from its first step, or from a checkpoint, to the published folder."""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import datasets
import peft
import torch
from transformers import (
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from rlcore.checkpoint import publish, require_replaceable, told_as_os_error
from rlcore.checkpoint.manifest import damage_of, described, newest_whole, read_json
from rlcore.errors import CheckpointError, ConfigError, TrainingDiverged
from rlcore.health import refuse_non_finite
from rlcore.processes import launched_processes
from rlcore.results import TrainResult
from rlcore.run_folder import checkpoint_folder, only_run_in, require_same_run
from rlcore.trl_trainers.arguments import Plan
from rlcore.trl_trainers.metrics import ReportCallback

COMPLETE, IDENTITY, STATE = "complete", "identity.json", "trainer_state.json"


class _Checkpoints(TrainerCallback):
    """Save an evaluated step that is the best so far, and mark a checkpoint once all its files are written.

    The mark holds their sizes and hashes. A save that was killed is never marked, so it is never resumed from.
    """

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        value, best = kwargs["metrics"][args.metric_for_best_model], state.best_metric
        if best is None or (value > best if args.greater_is_better else value < best):
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
            # Other processes may still be writing the state of their random numbers.
            files = [file for file in sorted(folder.iterdir()) if file.is_file() and file.name != COMPLETE]
            whole = described(file for file in files if not file.name.startswith("rng_state_"))
            draft = folder / f".{COMPLETE}.tmp"
            draft.write_text(json.dumps(whole, indent=1), encoding="utf-8")
            draft.replace(folder / COMPLETE)


class _FiniteGradients(TrainerCallback):
    """Stop before a gradient that is no number gets into weights and checkpoints."""

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        gradients = [weight.grad for weight in kwargs["model"].parameters() if weight.grad is not None]
        if not bool(torch.nn.utils.get_total_norm(gradients).isfinite()):
            raise TrainingDiverged(
                f"Optimiser step {state.global_step + 1}: the gradient is not finite, expected numbers. The last "
                "checkpoint is untouched; lower the learning rate."
            )


def run(
    make_trainer: Callable[[Path], Trainer],
    save: Callable[[Path], None],
    plan: Plan,
    identity: Mapping[str, Any],
    report: ReportCallback,
    *,
    model: PreTrainedModel | peft.PeftModel,
    output_dir: Path,
    resume_dir: Path | None,
) -> TrainResult:
    """Train what is left of a run, go back to its best evaluated step, and publish the model.

    Args:
        make_trainer: from a folder for checkpoints to the trainer of `model`.
        save: writes the trained model into a folder.
        plan: as the trainer was told.
        identity: what must be the same for a checkpoint to belong to this run; plain JSON.
        report: gets the logs.
        model: trained in place.
        output_dir: replaced as a whole at the end.
        resume_dir: folder for checkpoints; a complete one in it is resumed from. None leaves nothing but the model.

    Raises:
        ConfigError, CheckpointError: before the first step, see require_replaceable and checkpoint_folder.
        ConfigError: TRL refuses a setting.
        CheckpointError: resume_dir holds another run or one that is still going on, or a trained weight is not finite.
        TrainingDiverged: a gradient is not finite.
        StopTraining: the sink stopped the run; a checkpoint of that step lies in resume_dir.
    """
    processes = launched_processes()
    if processes.is_first:
        report.on_metrics(0, {"progress/total_steps": float(plan.total_steps // report.steps_per_point)})
    state = TrainerState()
    with contextlib.ExitStack() as stack:

        def open_folders() -> Path:
            require_replaceable(output_dir)
            folder = stack.enter_context(checkpoint_folder(resume_dir, output_dir))
            stack.enter_context(only_run_in(folder))
            return folder

        folder = processes.on_first(open_folders)
        start = processes.on_first(lambda: _claim(folder, identity))
        if start is not None and _step_of(start) >= plan.total_steps:
            # The transformers loop would take one step more.
            state = TrainerState.load_from_json(str(start / STATE))
            _load_weights(model, start)
        elif plan.total_steps:
            with _without_progress_bars(), _refusals():
                trainer = make_trainer(folder)
            trainer.remove_callback(PrinterCallback)
            for callback in (report, _Checkpoints(), _FiniteGradients()):
                trainer.add_callback(callback)
            with told_as_os_error(folder):
                trainer.train(resume_from_checkpoint=None if start is None else str(start))
            if report.stop is not None:
                raise report.stop
            state = trainer.state
        best_step = state.best_global_step or state.global_step
        if best_step != state.global_step:
            _load_weights(model, folder / f"checkpoint-{best_step}")
        refuse_non_finite("The trained model", model.state_dict())
        processes.on_first(lambda: _publish(save, output_dir))
    final, best = (report.newest(state.log_history, step) for step in (state.global_step, best_step))
    return TrainResult(output_dir, best_step // report.steps_per_point, final, best)


@contextlib.contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Hide the bars of data sets, which TRL prepares a second time."""
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Tell what TRL does not train, such as adapters in an output layer, as a wrong setting."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"TRL: {' '.join(str(error).split())}") from error


def _claim(folder: Path, identity: Mapping[str, Any]) -> Path | None:
    """The newest checkpoint, if it is this run's; without any, write down whose the folder is.

    Raises:
        CheckpointError: there are checkpoints that no such run left, or of another one. Nothing is removed.
    """
    path, found = folder / IDENTITY, _checkpoints_in(folder)
    if found and not path.is_file():
        raise CheckpointError(
            f"{folder}: found {found[0].name} and no {IDENTITY}, expected checkpoints of this stage or none. "
            "Name another folder, or move them away."
        )
    complete = [checkpoint for checkpoint in found if (checkpoint / COMPLETE).exists()]
    if complete:
        require_same_run(path, _read_identity(path), identity)
    for checkpoint in found:
        if checkpoint not in complete:
            shutil.rmtree(checkpoint)
    newest = newest_whole(sorted(complete, key=_step_of, reverse=True), _fault_of)
    if newest is not None:
        return newest
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(identity, indent=1), encoding="utf-8")
    draft.replace(path)
    return None


def _checkpoints_in(folder: Path) -> list[Path]:
    return [path for path in folder.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdecimal()]


def _fault_of(checkpoint: Path) -> str | None:
    """What keeps a complete checkpoint from being as it was written."""
    try:
        return damage_of(checkpoint, read_json(checkpoint / COMPLETE))
    except (CheckpointError, AttributeError, KeyError, TypeError) as error:
        return f"{COMPLETE} cannot be read ({error!r})"


def _read_identity(path: Path) -> Any:
    try:
        identity = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(identity, dict):
            raise ValueError(f"found {identity!r:.80}")
        return identity
    except ValueError as error:
        raise CheckpointError(
            f"{path}: {error}, expected what this stage wrote. Restore it, or empty the folder to start anew."
        ) from error


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rsplit("-", 1)[1])


def _load_weights(model: PreTrainedModel | peft.PeftModel, checkpoint: Path) -> None:
    if isinstance(model, peft.PeftModel):
        model.load_adapter(str(checkpoint), model.active_adapter)
        return
    model.load_state_dict(type(model).from_pretrained(checkpoint, dtype=model.dtype).state_dict())


def _publish(save: Callable[[Path], None], output_dir: Path) -> None:
    with publish(output_dir) as draft:
        save(draft)
