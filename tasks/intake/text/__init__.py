"""Texts looked at character by character: what nobody sees, what is private, whose script, how many tokens."""
