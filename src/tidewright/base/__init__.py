"""base: the ground floor. Units, ids, errors, seeded randomness and the name registry; standard library only."""

MAY_IMPORT: tuple[str, ...] = ()
