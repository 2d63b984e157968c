"""The model: a cluster, its QPUs and hybrid applications on a virtual clock."""
