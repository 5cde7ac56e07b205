"""The command groups of `rlhf` that need a checkout: a module each, named by an entry point `rlhf.commands`."""
