"""Parts that tests share: the rows to run, operands in every layout, data, error bounds."""
