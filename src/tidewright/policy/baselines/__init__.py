"""Baselines: published policies that others are compared with, one idea per file."""
