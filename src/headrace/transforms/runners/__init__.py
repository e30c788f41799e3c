"""What spreads a transform's tasks beyond this process: worker processes, Ray, Beam."""
