-- PostgreSQL's image makes the database `prefect`. Run once, when the volume is empty.
CREATE DATABASE mlflow;
