"""Filling experiments: pods that arrive one after another and never leave, placed by scores, as FGD's evaluation (ATC'23) does."""
