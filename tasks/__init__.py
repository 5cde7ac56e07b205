"""The stages of the pipeline, and what records them."""
