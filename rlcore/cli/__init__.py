"""The command `rlhf`."""
