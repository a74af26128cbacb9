"""Tests of runtime.padding."""
