"""How a run is saved, and how it goes on to the same bits."""
