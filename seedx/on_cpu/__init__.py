"""Faster programs for CPUs, with the same results: skip it on a first reading.

A module's docstring begins with the CPU time that it saves.
"""
