"""What is made of journals: tables, progress, pictures, node and QPU usage."""
