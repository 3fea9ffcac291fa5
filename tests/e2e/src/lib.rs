//! Palisade on a real API server; see `tests/`.
