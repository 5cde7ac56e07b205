#!/bin/sh
# How a worker starts, in a container or as a unit: tell the server of the pool, the limits and the flows of this
# checkout, then run what is due. Runs that train wait for each other: the checkout is held by one.
set -eu
mkdir -p "$HOME"
python -c 'from pathlib import Path; from tasks.service.deployments import set_up; print(*set_up(Path.cwd()), sep="\n")'
exec prefect worker start --pool rlhf --type process --limit 4
