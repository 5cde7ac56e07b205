# MLflow's server with drivers for PostgreSQL and S3. Built from the root of the checkout.
FROM python:3.11.13-slim-bookworm

ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONUNBUFFERED=1

COPY requirements.lock infra/requirements.txt /tmp/
RUN pip install --constraint /tmp/requirements.lock --constraint /tmp/requirements.txt mlflow psycopg2-binary boto3

COPY infra/docker/make_buckets.py /opt/make_buckets.py

RUN useradd --create-home --uid 10001 mlflow
USER 10001
WORKDIR /home/mlflow

EXPOSE 5000
CMD ["mlflow", "server", "--host=0.0.0.0", "--port=5000"]
