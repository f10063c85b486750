//! Doubles, real parts and patience: what tests, benches and examples are built from.
//!
//! Compiled only with the feature `testing` (the crate's own tests turn it on) and never part of a release build.
//! Every fake says in its head what it imitates. Nothing here sleeps for luck: fakes have gates that a test opens,
//! and waiting means [`eventually`]. Everything that is started (process, task, socket) ends with the value that
//! stands for it, and all traffic stays on loopback.
//!
//! * real parts: [`parts`] (where they come from), [`envoy`] (a running one, its admin, its access log), [`llama`]
//!   (llama.cpp's server), [`child`] (what both are as processes)
//! * doubles: [`instance`] (a backend), [`sim_envoy`] (an xDS client), [`scripted_ads`] (an xDS server),
//!   [`xds_samples`] (resources to speak about)
//! * tidegate itself: [`app`] (whole, in this process), [`process`] (the real program), [`setup`] (their config)
//! * builders: [`model`], [`world`]
//! * tools: [`load`], [`fetch`], [`eventually`], [`trace`]

pub mod app;
pub mod child;
pub mod envoy;
pub mod eventually;
pub mod fetch;
pub mod instance;
pub mod llama;
pub mod load;
pub mod model;
pub mod parts;
pub mod process;
pub mod scripted_ads;
pub mod setup;
pub mod sim_envoy;
pub mod trace;
pub mod world;
pub mod xds_samples;
