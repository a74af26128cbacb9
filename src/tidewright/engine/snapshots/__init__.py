"""Snapshots of the book: their format, its earlier versions, and what journals of earlier versions hold."""
