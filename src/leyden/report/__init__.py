"""Runs as tables and pictures."""
