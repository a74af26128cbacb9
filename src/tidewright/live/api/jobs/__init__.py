"""Which jobs a request means, and the routes that act on one or many."""
