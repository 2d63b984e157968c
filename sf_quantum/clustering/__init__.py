"""Clustering aggregation: the science of the example workflow."""
