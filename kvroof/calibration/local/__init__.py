"""The device that JAX sees here, measured: its kernels, its links, its host, and the profiles they give."""
