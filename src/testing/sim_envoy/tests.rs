//! The machine, driven by hand-made responses.
