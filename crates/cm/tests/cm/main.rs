//! Two managers, their programs and the network between them, in one thread under a virtual clock.

mod churn;
mod connections;
mod datagrams;
mod forgeries;
mod hosts;
mod loss;
mod refusals;
mod world;
