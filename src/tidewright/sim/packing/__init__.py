"""Filling experiments: pods that arrive and never leave, placed by scores, as FGD's evaluation (ATC'23) does."""
