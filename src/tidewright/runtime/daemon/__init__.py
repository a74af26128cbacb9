"""The process that owns a device: it lets clients in, asks the scheduler what to do, and has workers do it."""
