"""What make test-codegen checks of whole models: every kernel of them compiled with the gate and without, for a GPU that
is not there."""
