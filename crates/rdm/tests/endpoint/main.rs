//! Endpoints that communicate in one thread, over a network in memory and with a simulated clock.

mod exactly_once;
mod groups;
mod host;
mod loss;
mod messages;
mod net;
mod one_sided;
mod world;
