//! Fetching and acknowledging events. They name objects of every kind, so no object depends on this folder.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`completion_event`] | events of completion channels |
//! | [`async_event`] | asynchronous events of a device |

pub mod async_event;
pub mod completion_event;
