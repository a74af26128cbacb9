"""Requests of users: admission, holds, moves to other nodes, scaling."""
