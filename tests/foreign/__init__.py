"""Tasks and data as a researcher brings them: plain Lightning, which knows nothing of leyden."""
