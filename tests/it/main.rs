//! Integration tests: one binary, because linking costs more than compiling. Only `mod` lines here.

mod admin;
mod alone;
mod bootstrap;
mod check;
mod completions;
mod csds;
mod doctor;
mod encoding;
mod envoy;
mod grpc;
mod probe;
mod sim_envoy;
mod system;
mod transcript;
