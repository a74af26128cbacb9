"""Profiles that come with the package, as JSON; each names who measured it."""
