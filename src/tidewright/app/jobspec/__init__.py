"""app.jobspec: what a user writes as JobSpecs: YAML files, batch scripts, command lines; arrays and sweeps."""
