"""Rows from files of every format, in pieces that fit into memory; what cannot be read is a fault with its place."""

from tasks.intake.reading.lines import BEGIN_BYTES, FAULTS, Fault, Line, Source, as_raw
from tasks.intake.reading.sources import chunks, find, lines, sources

__all__ = ["BEGIN_BYTES", "FAULTS", "Fault", "Line", "Source", "as_raw", "chunks", "find", "lines", "sources"]
