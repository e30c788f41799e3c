"""File bytes to blocks of records, blocks to tensors, predictions to bytes. Pure: nothing here waits."""
