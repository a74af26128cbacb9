"""What is put first on a rank's PYTHONPATH: ``sitecustomize`` and the package that it brings in."""
