"""What works inside a user's Python so that its job can be suspended, moved and resized: nothing of it is imported by
the user's script, and nothing here imports tidewright. Standard library only, torch when the program has it; 3.9."""
