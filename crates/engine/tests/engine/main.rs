//! Tests of the engine through its public face: two engines with memories of their own, joined by
//! a wire that the test moves by hand, or one engine and the loopback link.

mod basics;
mod exactly_once;
mod flow;
mod queues;
mod rights;
mod support;
mod windows;
