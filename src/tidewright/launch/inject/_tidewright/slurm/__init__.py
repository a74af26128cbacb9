"""``srun`` and ``scontrol`` for the tasks of a batch script. Runs in any Python 3.7 or later, without its site packages."""
