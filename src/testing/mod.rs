//! Test doubles and builders, behind the feature `testing`.
pub mod model;
pub mod world;
