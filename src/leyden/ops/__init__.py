"""Operators of our own, in C++ and CUDA."""
