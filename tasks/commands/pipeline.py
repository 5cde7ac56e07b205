"""`rlhf pipeline`: run the pipeline, plan a run, compare algorithms, ask what the reward model is worth."""

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rlcore.exit_codes import DONE
from tasks.commands.running import checked_settings, enter_checkout, run_flow, watched
from tasks.records import artifacts
from tasks.records.lent_parameters import own_parameters
from tasks.records.parameters import check_seeds, resolve
from tasks.running.progress import STEPS, Checklist
from tasks.running.report import comparison_text, terminal_table

PIPELINE, COMPARISON = "flows.rlhf_pipeline.rlhf_pipeline", "flows.rlhf_compare.rlhf_compare"
"""The flows as a worker names them. Tasks do not import flows."""


def pipeline(parser: argparse.ArgumentParser) -> None:
    """Train, measure and register a policy; compare algorithms; ask what the reward model is worth."""
    verbs = parser.add_subparsers(metavar="verb", required=True)
    run = verbs.add_parser("run", help="bring the whole pipeline up to date", description=_run_pipeline.__doc__)
    planned = verbs.add_parser("plan", help="which stages would run, why and how long", description=_plan.__doc__)
    compare = verbs.add_parser(
        "compare", help="train with each algorithm on the same data", description=_compare.__doc__
    )
    for verb in (run, planned, compare):
        verb.add_argument("--params", metavar="FILE", help="parameter file; its settings go over those of params.yaml")
        verb.add_argument(
            "--set", metavar="SECTION.KEY=VALUE", dest="sets", action="append", default=[],
            help="one setting; repeatable",
        )  # fmt: skip
    for verb in (run, planned):
        verb.add_argument("--seed", metavar="N", type=int, help="the same as --set seed=N")
        verb.add_argument(
            "--force", metavar="STAGE", action="append", default=[], choices=artifacts.STAGES,
            help="run this stage although nothing changed; repeatable",
        )  # fmt: skip
    run.set_defaults(run=_run_pipeline)
    planned.add_argument("--json", action="store_true", help="print JSON")
    planned.set_defaults(run=_plan)
    compare.add_argument(
        "--seeds",
        metavar="N",
        type=int,
        nargs="+",
        help="each algorithm runs with each; by default the seed of params.yaml",
    )
    compare.set_defaults(run=_compare)
    accuracy = verbs.add_parser(
        "pair-accuracy",
        help="the reward model beside length and a bag of words, on held-out pairs",
        description=_pair_accuracy.__doc__,
    )
    accuracy.set_defaults(run=_pair_accuracy)


def _run_pipeline(arguments: argparse.Namespace) -> int:
    """Run what is not done yet, record all of it, and say what came out."""
    sets = _sets(arguments)
    root, params = checked_settings(arguments.params, sets)

    def run(checklist: Checklist) -> Table:
        summary = run_flow(root, checklist, PIPELINE, params_file=params, sets=sets, force=arguments.force)
        return terminal_table({**summary, "uncommitted": _uncommitted(root)})

    return watched(run, STEPS)


def _plan(arguments: argparse.Namespace) -> int:
    """Say what `rlhf pipeline run` would do with the same arguments. Nothing is started and nothing is written.

    Times, memory and disk are those of the last execution of each stage, times in proportion to its steps.
    """
    from tasks.running.plan import plan
    from tasks.running.plan_table import plan_table

    sets = _sets(arguments)
    root, params = checked_settings(arguments.params, sets)
    planned = plan(root, resolve(own_parameters(root), Path(params) if params else None, sets), arguments.force)
    if arguments.json:
        print(json.dumps(planned.as_values(), indent=2))
    else:
        Console().print(plan_table(planned))
    return DONE


def _compare(arguments: argparse.Namespace) -> int:
    """Train with PPO, GRPO, DPO and ORPO on the same data, and print what came out beside each other.

    Where `reward_function` or the checker of `evaluate.gold` is named, GRPO is trained with that verifier too.
    Nothing is registered, and params.yaml is left as it is. What was trained before is taken from the cache.
    """
    root, params = checked_settings(arguments.params, arguments.sets)
    if arguments.seeds is not None:
        check_seeds(arguments.seeds)

    def run(checklist: Checklist) -> str:
        settings = {"seeds": arguments.seeds, "params_file": params, "sets": arguments.sets}
        return comparison_text(run_flow(root, checklist, COMPARISON, **settings))

    return watched(run, STEPS[:-1])


def _pair_accuracy(arguments: argparse.Namespace) -> int:
    """Print how often the last run's reward model, length and a bag of words order held-out pairs rightly."""
    from tasks.measuring.pair_accuracy import report

    enter_checkout()
    print(report(resolve().parameters.evaluate))
    return DONE


def _sets(arguments: argparse.Namespace) -> list[str]:
    return [*arguments.sets, *([f"seed={arguments.seed}"] if arguments.seed is not None else [])]


def _uncommitted(root: Path) -> list[str]:
    from tasks.records.versioning import uncommitted

    return uncommitted(root)
