"""The device runtime."""
