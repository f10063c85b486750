//! Integration tests: one binary, because linking costs more than compiling. Only `mod` lines here.

mod envoy;
mod sim_envoy;
mod transcript;
