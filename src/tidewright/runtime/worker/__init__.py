"""The process in which models of one client run: it makes them, runs tasks in order, and stops where it is asked to."""
