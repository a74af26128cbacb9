"""The two modes of a device, without I/O: what runs, what stops and what resumes, decided from events."""
