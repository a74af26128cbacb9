"""Crashes: between every pair of side effects on a virtual clock, and at random with real processes."""
