"""serve.replica: the process that runs a model, and its connection to the gateway."""
