"""A run: its directory, its record, and the objects that its config describes."""
