"""Tests of runtime.device_model."""
