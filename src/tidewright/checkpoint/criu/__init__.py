"""Full images of ranks by CRIU: finding and installing it, what it cannot dump, dumping and restoring."""
