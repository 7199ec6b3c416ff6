"""Callbacks of this project."""
