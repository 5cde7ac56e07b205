"""A pipeline run from start to summary, and the commands around it."""
