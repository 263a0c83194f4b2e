//! Two queue pairs, their programs and the network between them, in one thread under a virtual clock.

mod attached;
mod congestion;
mod datagrams;
mod hostile;
mod lone;
mod long_paths;
mod model;
mod network;
mod probes;
mod program;
mod reliable;
mod repeats;
mod requester;
mod responder;
mod retries;
mod schedules;
mod seeds;
mod selective;
mod soft_roce;
mod unreliable;
mod world;
