"""Device memory of CUDA processes: checkpoint and restore by the driver, images of ranks on GPUs, swapping between slices."""
