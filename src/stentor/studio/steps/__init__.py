"""The five steps of the page. Each builds its part in `build(shared, tab)`; all that it knows is on the disk."""
