"""Wiring: which tasks run, in which order."""
