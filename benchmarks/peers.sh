#!/usr/bin/env bash
# The peers' own environments, from the package registry, in .rlhf/peers/<name>. What is finished is left alone.
# TRL 1.16 needs none: it is in requirements.lock, so our own environment serves it.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
PEERS=.rlhf/peers

locked() { grep -E "^($(tr ' ' '|' <<< "$*"))==" requirements.lock; }

# build NAME PIP_ARGUMENTS...: torch comes first and by itself, so that the build for this machine is taken.
build() {
    local folder=$PEERS/$1 pip=$PEERS/$1/bin/pip
    shift
    if [[ "$(cat "$folder/.installed" 2> /dev/null)" == "$*" ]]; then
        echo "$folder: there"
        return
    fi
    echo "$folder: installing, two to five minutes"
    rm -rf "$folder"
    "$PYTHON" -m venv "$folder"
    # shellcheck disable=SC2046
    "$pip" install --quiet $(locked torch numpy)
    # shellcheck disable=SC2046
    "$pip" install --quiet $(locked torch numpy transformers accelerate peft datasets tokenizers safetensors) loguru requests
    "$pip" install --quiet "$@"
    echo "$*" > "$folder/.installed"
}

build trl-1.12 trl==1.12.0
# Its own requirements bring a torchvision that does not fit this torch; the trainers of autotrain.trainers.rl need none of it.
build aitraining --no-deps aitraining==0.0.54
