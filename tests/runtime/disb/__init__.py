"""Tests of runtime.disb."""
