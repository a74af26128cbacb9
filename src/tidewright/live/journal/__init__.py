"""live.journal: the durable journal in SQLite: append, watermark, recovery, verification, repair, export, archive."""
