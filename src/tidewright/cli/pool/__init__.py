"""cli.pool: commands on the controller, its nodes and the stored images."""
