//! The rules of the core, one object after the other.

mod across;
mod bindings;
mod deregistering;
mod domains;
mod fixture;
mod keys;
mod limits;
mod magazines;
mod null_regions;
mod regions;
mod table;
mod window_keys;
mod windows;
