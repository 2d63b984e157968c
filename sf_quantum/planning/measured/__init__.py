"""What the journals of earlier runs tell: phases, overheads, and how sure they are."""
