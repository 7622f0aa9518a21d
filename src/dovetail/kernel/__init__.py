"""The engine-independent core: numpy and pyarrow, no Spark.

`protocol` the shape of every operator · `keys` join columns to 64-bit codes · `runs` the one
index · `slices` batches cut by what rows take up · `memory` the budget · `blocks` sorted blocks on
disk · `matching` pairs to output batches.
"""
