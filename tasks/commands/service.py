"""`rlhf up`, `rlhf down`: Prefect, MLflow and a worker as processes that stay."""

import argparse

from rlcore.exit_codes import DONE
from tasks.commands.running import enter_checkout, say
from tasks.service.standing import bring_down, bring_up

PIPELINE, RETRAINING = "rlhf-pipeline/rlhf-pipeline", "retraining/nightly"


def up(parser: argparse.ArgumentParser) -> None:
    """Start Prefect, MLflow and a worker in the background, and deploy the flows."""
    parser.description = _up.__doc__
    parser.set_defaults(run=_up)


def down(parser: argparse.ArgumentParser) -> None:
    """End what `rlhf up` started; a run in progress is cancelled, and the next one goes on from it."""
    parser.description = _down.__doc__
    parser.set_defaults(run=_down)


def _up(arguments: argparse.Namespace) -> int:
    """Start what does not run yet, bring the deployments up to date, and say where everything is.

    A server that PREFECT_API_URL or MLFLOW_TRACKING_URI names is used, and none is started in its place.
    """
    standing = bring_up(enter_checkout(), say)
    for title, url in standing.urls.items():
        print(f"{title}: {url}{'' if title in standing.started else ' (ran already)'}")
    print(f"deployments: {', '.join(standing.deployments)}")
    if RETRAINING in standing.deployments:
        print(f"{RETRAINING} runs at 02:00 UTC; it is skipped where a policy learnt from the data already;")
        print("  a switch on its page turns that off, and it stays off")
    for line in filter(None, (standing.export, f"prefect deployment run {PIPELINE} --watch")):
        print(f"next: {line}")
    print("stop all: rlhf down")
    return DONE


def _down(arguments: argparse.Namespace) -> int:
    """Cancel the run in progress, and end worker, MLflow and Prefect. What they recorded stays."""
    ended = bring_down(enter_checkout(), say)
    print(f"Ended: {', '.join(ended)}." if ended else "Nothing of this checkout was running.")
    return DONE
