"""Architectures: plain modules of plain arguments."""
