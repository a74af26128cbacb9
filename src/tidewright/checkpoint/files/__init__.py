"""Files of a stopped rank: which it has open, copies of them, their rollback at a restore, and the room they need."""
