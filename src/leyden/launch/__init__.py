"""From a command line to a running function."""
