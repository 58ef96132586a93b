"""What a program's products take: recorded, timed, and tuned.

``torch_sgemm`` exports ``recording``, ``Record``, ``tune`` and ``Tuning``. Kernel times, the model
of the tensor cores, and what the commands share are internal.
"""
