"""Registered models: versions, aliases, promotion, and what a version was made of."""
