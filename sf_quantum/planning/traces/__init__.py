"""Load that was recorded: of a cluster's nodes, and of QPUs."""
