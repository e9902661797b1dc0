"""Maps fitted on embeddings: training and saving."""
