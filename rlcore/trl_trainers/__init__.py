"""Thin adapters to TRL trainers: explicit keywords in, our metric names out. The only place that imports trl."""
