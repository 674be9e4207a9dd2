"""Instruments of developers."""
