"""Benchmarks of torch_sgemm beside PyTorch's own products: ``python -m benchmarks --help``."""
