//! Other devices: how they are found, the links to and from them, and which processes they belong to.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`names`] | abstract socket names, by which devices of one host find each other |
//! | `qp_numbers` | the blocks of queue pair numbers that this device has claimed |
//! | `discovery` | finds the device that has a queue pair number, and connects to it |
//! | `multicast` | finds the devices with members of a multicast group |
//! | `link_manager` | accepts clients, watches the links, takes those apart that broke |
//! | `half_open` | clients that have connected and not yet said what they want |
//! | `handshake` | how links are made; names the kind of link |
//! | `link_limits` | how many links and descriptors other processes may take |
//! | `identity` | which process a device belongs to |
//! | `process` | what the kernel says of other processes |
//! | `unresponsive` | whether a peer that does not answer had the processor time to do so |

pub(crate) mod discovery;
pub(crate) mod half_open;
pub(crate) mod handshake;
pub(crate) mod identity;
pub(crate) mod link_limits;
pub(crate) mod link_manager;
pub(crate) mod multicast;
pub mod names;
pub(crate) mod process;
pub(crate) mod qp_numbers;
pub(crate) mod unresponsive;
