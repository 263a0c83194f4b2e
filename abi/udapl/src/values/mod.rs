//! Values without a handle or a lock, and their conversion between the forms of DAT, of the device and of messages.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`event`] | events as programs get them |
//! | [`ep_state`], [`ep_attr`] | the states of an EP and the steps between them; its attributes |
//! | [`limits`] | the limits of IAs and EPs |
//! | [`privileges`] | memory privileges, and the device's rights |
//! | [`address`] | addresses of IAs |
//! | [`hello`] | the messages that two providers exchange |

pub mod address;
pub mod ep_attr;
pub mod ep_state;
pub mod event;
pub mod hello;
pub mod limits;
pub mod privileges;
