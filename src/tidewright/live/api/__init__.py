"""live.api: the HTTP API of a controller: sockets, identity, request parsing, views of the book, events, metrics."""
