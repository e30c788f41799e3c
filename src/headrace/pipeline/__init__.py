"""The stream: source → prefetch → batcher → predict → delivery → sink, bounded at every step; asks a Predictor."""
