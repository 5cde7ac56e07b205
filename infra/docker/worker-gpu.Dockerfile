# A worker on NVIDIA GPUs. torch's own packages bring CUDA; the driver is the host's, by NVIDIA's container toolkit.
# Built from the root of the checkout.
FROM python:3.11.13-slim-bookworm

ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

# git: DVC and the lineage of a version need it. Debian keeps one version of a package, so a pin would break the build.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git \
    && rm -rf /var/lib/apt/lists/* \
    && git config --system --add safe.directory /workspace

COPY requirements.lock infra/requirements.txt /tmp/
# hadolint ignore=DL3013
RUN pip install --constraint /tmp/requirements.lock torch \
    && python -c 'import sys, torch; sys.exit(None if torch.version.cuda else "found a torch without CUDA")' \
    && pip install --requirement /tmp/requirements.lock --requirement /tmp/requirements.txt

# The checkout is mounted over this copy, so what runs is the code of the checkout.
WORKDIR /workspace
COPY . .
RUN pip install --no-deps --editable . \
    && useradd --create-home --uid 10001 worker \
    && chown worker:worker /workspace
USER 10001

CMD ["infra/docker/worker.sh"]
