"""Commands about services."""
