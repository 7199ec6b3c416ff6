"""Operators of this project, in C++ and CUDA."""
