"""Messages and calls of a client about jobs, by what is done with them."""
