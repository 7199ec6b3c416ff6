"""A file for each data set: `read(split)` gives x and y."""
