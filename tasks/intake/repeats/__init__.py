"""Rows that belong together: splits, repetition, leaks from one split to another."""
