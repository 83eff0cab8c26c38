"""From the images of a split to batches: order, workers, shared memory, sets resident on a device."""
