"""From text files to packed batches of token ids."""
