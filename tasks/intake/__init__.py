"""Data on its way in: reading, rules, splits, versions."""
