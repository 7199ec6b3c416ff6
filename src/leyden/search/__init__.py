"""Searches with Optuna."""
