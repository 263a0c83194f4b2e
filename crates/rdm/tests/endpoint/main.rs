//! Endpoints that talk to each other in one thread, over a network in memory and under a clock of its own.

mod exactly_once;
mod groups;
mod host;
mod loss;
mod messages;
mod net;
mod one_sided;
mod world;
