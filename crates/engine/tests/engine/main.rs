//! Tests of the engine through its public interface: two engines with their own memories, joined by
//! a wire that the test drives, or one engine and the loopback link.

// Nearly every loop here is over "side 0 and side 1".
#![allow(clippy::needless_range_loop, clippy::large_enum_variant)]

mod answered;
mod bare;
mod basics;
mod completion_queues;
mod counters;
mod cut_through;
mod datagrams;
mod exactly_once;
mod faults;
mod flow;
mod groups;
mod guesses;
mod hosts;
mod inbox;
mod limits;
mod links;
mod posts;
mod refusals;
mod retries;
mod rights;
mod scenes;
mod shared_receives;
mod short_requests;
mod support;
mod taken_back;
mod unreliable;
mod windows;
mod xrc;
