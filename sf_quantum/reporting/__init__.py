"""What is made of journals: tables, timelines, node and QPU usage."""
