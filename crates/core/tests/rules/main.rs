//! The rules of the core, by object.

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
