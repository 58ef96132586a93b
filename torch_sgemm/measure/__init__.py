"""Records, times and tunes a program's products.

``torch_sgemm`` exports ``recording``, ``Record``, ``tune`` and ``Tuning``. Kernel times, the model
of the tensor cores, and what the commands share are internal.
"""
