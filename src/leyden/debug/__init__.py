"""What to switch on when a run goes wrong."""
