"""Reports on runs from their journals: tables, progress, pictures, resource usage."""
