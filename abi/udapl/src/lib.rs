//! A uDAPL 2.0 provider on the rkey software device: what libdat2 loads for an IA of `dat.conf`.
//!
//! The library translates between DAT's objects, flags and events and the device's. The device checks every access and
//! executes the requests.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`sys`] | structures and constants of `dat2/udat.h` |
//! | [`export`], [`provider`], [`entries`], [`registry`] | how libdat2 and this provider find each other; the table of all calls |
//! | [`object`], [`argument`], [`fail`], [`limits`] | handles and arguments, how calls fail, limits |
//! | [`ia`], [`ia_calls`], [`ia_attr`], [`address`], [`describe`] | open devices, and what inspections show of them |
//! | [`worker`], [`job`] | the thread of an IA, and its jobs |
//! | [`pz`], [`lmr`], [`rmr`], [`pz_calls`], [`lmr_calls`], [`rmr_calls`], [`privileges`] | memory: zones, regions, and binds |
//! | [`evd`], [`evd_take`], [`evd_wait`], [`evd_notify`], [`evd_calls`], [`event`], [`completion`], [`cno`], [`cno_calls`] | events |
//! | [`ep`], [`ep_calls`], [`ep_attr`], [`ep_state`], [`connection`], [`ep_connect`], [`ep_disconnect`] | endpoints and their connections |
//! | [`psp`], [`rsp`], [`service`], [`cr`], [`cr_calls`], [`hello`] | how peers request connections |
//! | [`post`], [`requests`], [`srq`], [`srq_calls`] | DTOs |
//! | [`ext`], [`va_list`], [`datagram`] | the InfiniBand extension |

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

pub mod address;
pub mod argument;
pub mod cno;
pub mod cno_calls;
pub mod completion;
pub mod connection;
pub mod cr;
pub mod cr_calls;
pub mod datagram;
pub mod describe;
pub mod entries;
pub mod ep;
pub mod ep_attr;
pub mod ep_calls;
pub mod ep_connect;
pub mod ep_disconnect;
pub mod ep_state;
pub mod evd;
pub mod evd_calls;
pub mod evd_notify;
pub mod evd_take;
pub mod evd_wait;
pub mod event;
pub mod ext;
pub mod fail;
pub mod hello;
pub mod ia;
pub mod ia_attr;
pub mod ia_calls;
pub mod job;
pub mod limits;
pub mod lmr;
pub mod lmr_calls;
pub mod object;
pub mod post;
pub mod privileges;
pub mod provider;
pub mod psp;
pub mod pz;
pub mod pz_calls;
pub mod registry;
pub mod requests;
pub mod rmr;
pub mod rmr_calls;
pub mod rsp;
pub mod service;
pub mod srq;
pub mod srq_calls;
pub mod sys;
pub mod va_list;
pub mod worker;

#[allow(unsafe_code)]
// UNSAFETY: functions that a C library calls.
pub mod export;
