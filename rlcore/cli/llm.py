"""`rlhf llm --train`: one training from flags."""

import argparse
import logging
import os
import shlex
import sys
import warnings
from collections.abc import Mapping

from rlcore.cli.flags import add_flags, params_from, with_flags
from rlcore.cli.params import LLMTrainingParams
from rlcore.cli.parser import Parser
from rlcore.cli.stages import STAGE_FIELDS
from rlcore.cli.stopping import Stopped, stoppable
from rlcore.errors import ConfigError, RLCoreError
from rlcore.exit_codes import DONE

MODES = ("run", "train", "backend", "preview_trainer")
"""What is parsed besides the settings."""


USAGE = "rlhf llm --train --trainer TRAINER [flags]"


def llm(parser: argparse.ArgumentParser) -> None:
    """Train a language model or a reward model: sft, reward, ppo, grpo, dpo, orpo."""
    parser.usage = USAGE
    parser.add_argument("--train", action="store_true", help="train; there is nothing else to do")
    parser.add_argument("--backend", metavar="local", default="local", help="where; this machine is all there is")
    parser.add_argument(
        "--preview-trainer",
        choices=STAGE_FIELDS,
        metavar="TRAINER",
        help="show the flags that a trainer reads, and end",
    )
    add_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Train as the flags say, show progress, and print what was written and the next command; the exit code."""
    if arguments.preview_trainer:
        preview = Parser(usage=USAGE, add_help=False)
        add_flags(preview, arguments.preview_trainer)
        preview.print_help()
        return DONE
    if not arguments.train:
        raise ConfigError("llm found no --train, expected it: there is nothing else to do. Add it.")
    handler = logging.StreamHandler()
    handler.setFormatter(_FlagFormatter("%(levelname)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    given = {name: value for name, value in vars(arguments).items() if name not in MODES}
    try:
        return _train(params_from(given), arguments.backend)
    except RLCoreError as error:
        # Messages name the fields that flags stand for. The class stays, and with it the exit code.
        error.args = (with_flags(str(error)),)
        raise


def next_command(params: LLMTrainingParams) -> str:
    """What people do next with the result."""
    if params.stage != "reward":
        loader = "AutoModelForCausalLM" if params.merge_adapter else "AutoPeftModelForCausalLM"
        package = "transformers" if params.merge_adapter else "peft"
        return f'python -c "from {package} import {loader}; {loader}.from_pretrained({params.project_name!r})"'
    flags = {
        "--trainer": "ppo",
        "--model": params.model,
        "--reward-model": params.project_name,
        "--data-path": "prompts.jsonl",
        "--project-name": "ppo-model",
        # The documents' defaults of these two are outside what they recommend for ppo.
        "--rl-top-k": "0",
        "--lr": "1e-5",
    }
    return " ".join(["rlhf llm --train", *(f"{flag} {shlex.quote(text)}" for flag, text in flags.items())])


def _train(params: LLMTrainingParams, backend: str) -> int:
    _quieten_libraries()
    if os.getcwd() not in sys.path:
        # Environments and reward functions of one's own lie where the command is run.
        sys.path.insert(0, os.getcwd())
    # These load datasets, which takes seconds.
    from rlcore.cli.progress import shown_progress
    from rlcore.cli.project import AutoTrainProject, say_what_was_written

    try:
        with stoppable() as check:
            project = AutoTrainProject(params, backend=backend, process=True)
            with shown_progress(params.stage) as show:

                def report(step: int, metrics: Mapping[str, float]) -> None:
                    show(step, metrics)
                    check()

                done = project.train(report)
    except Stopped as stop:
        sys.stderr.write(f"{_after_a_stop(params)}\n")
        return stop.exit_code
    say_what_was_written(params, done, next_command(params))
    return DONE


def _quieten_libraries() -> None:
    """Leave standard error to what concerns the run. To be called before they are imported."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")


def _after_a_stop(params: LLMTrainingParams) -> str:
    if params.save_strategy == "no":
        return "Stopped. Nothing is kept, as --save-strategy no says."
    if params.resume_from_checkpoint is None:
        return "Stopped. The same command with --resume-from-checkpoint auto goes on from here."
    return "Stopped. The same command goes on from here."


class _FlagFormatter(logging.Formatter):
    """Log lines with flags in place of the names of fields."""

    def format(self, record: logging.LogRecord) -> str:
        return with_flags(super().format(record))
