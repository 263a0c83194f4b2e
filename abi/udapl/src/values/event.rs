//! Events as programs get them.

#![allow(unsafe_code)]
// UNSAFETY: software events contain addresses of the program.

use crate::sys::consts::*;
use crate::sys::{
    AsynchErrorEventData, ConnectionEventData, Context, CrArrivalEventData, DtoCompletionEventData,
    Event, EventData, Handle, IaAddressPtr, IbExtensionEventData, RmrBindCompletionEventData,
    SoftwareEventData, SpHandle,
};
use std::ptr::null_mut;

/// An event in the queue of an EVD.
#[derive(Clone, Copy)]
pub struct Queued {
    /// The event. Its EVD is filled in when the event is taken.
    pub event: Event,
    /// Whether the event wakes a waiting thread: a notification event.
    pub notify: bool,
}

// SAFETY: the addresses in an event are only handed to the program.
unsafe impl Send for Queued {}

fn event(event_number: dat_event_number, event_data: EventData) -> Event {
    Event {
        event_number,
        evd_handle: null_mut(),
        event_data,
        event_extension_data: [0; 8],
    }
}

/// A notification event.
#[must_use]
pub fn notifying(event: Event) -> Queued {
    Queued {
        event,
        notify: true,
    }
}

/// A cookie as the program passed it.
#[must_use]
pub fn cookie(bits: u64) -> Context {
    Context { as_64: bits }
}

/// The bits of a cookie.
#[inline]
#[must_use]
pub fn bits(cookie: Context) -> u64 {
    // SAFETY: all members are 64 bits of plain data.
    unsafe { cookie.as_64 }
}

/// A completed DTO.
#[must_use]
pub fn dto(
    ep: usize,
    user_cookie: u64,
    status: dat_dto_completion_status,
    transfered_length: u32,
    operation: dat_dtos,
) -> Event {
    let dto_completion_event_data = DtoCompletionEventData {
        ep_handle: ep as Handle,
        user_cookie: cookie(user_cookie),
        status,
        transfered_length,
        operation,
        rmr_context: 0,
    };
    event(
        DTO_COMPLETION_EVENT,
        EventData {
            dto_completion_event_data,
        },
    )
}

/// Turns the event of a DTO into one of the InfiniBand extension.
#[must_use]
pub fn extended(mut event: Event, data: &IbExtensionEventData) -> Event {
    event.event_number = IB_DTO_EVENT;
    set_extension(&mut event, data);
    event
}

/// Stores the data of an extended event.
pub fn set_extension(event: &mut Event, data: &IbExtensionEventData) {
    const { assert!(size_of::<IbExtensionEventData>() == size_of::<[u64; 8]>()) };
    let words = (&raw mut event.event_extension_data).cast::<IbExtensionEventData>();
    // SAFETY: 64 bytes with the alignment of a u64, which both have.
    unsafe { words.write(*data) };
}

/// A completed bind.
#[must_use]
pub fn bind(rmr: usize, user_cookie: u64, status: dat_dto_completion_status) -> Event {
    let rmr_completion_event_data = RmrBindCompletionEventData {
        rmr_handle: rmr as Handle,
        user_cookie: cookie(user_cookie),
        status,
    };
    event(
        RMR_BIND_COMPLETION_EVENT,
        EventData {
            rmr_completion_event_data,
        },
    )
}

/// A change of a connection's state, with the peer's private data, which stays valid until the EP connects again or is
/// freed.
#[must_use]
pub fn connection(number: dat_event_number, ep: usize, data: &[u8]) -> Event {
    let connect_event_data = ConnectionEventData {
        ep_handle: ep as Handle,
        private_data_size: data.len() as i32,
        private_data: match data {
            [] => null_mut(),
            data => data.as_ptr().cast_mut().cast(),
        },
    };
    event(number, EventData { connect_event_data })
}

/// A peer requests a connection.
#[must_use]
pub fn request(sp: usize, address: IaAddressPtr, conn_qual: u64, cr: usize) -> Event {
    let cr_arrival_event_data = CrArrivalEventData {
        sp_handle: SpHandle {
            psp_handle: sp as Handle,
        },
        local_ia_address_ptr: address,
        conn_qual,
        cr_handle: cr as Handle,
        truncate_flag: FALSE,
    };
    event(
        CONNECTION_REQUEST_EVENT,
        EventData {
            cr_arrival_event_data,
        },
    )
}

/// An asynchronous error.
#[must_use]
pub fn asynchronous(number: dat_event_number, about: usize, reason: i32) -> Event {
    let asynch_error_event_data = AsynchErrorEventData {
        dat_handle: about as Handle,
        reason,
    };
    event(
        number,
        EventData {
            asynch_error_event_data,
        },
    )
}

/// A software event with the program's pointer.
#[must_use]
pub fn software(from: &Event) -> Event {
    // SAFETY: the address is only copied.
    let pointer = unsafe { from.event_data.software_event_data.pointer };
    let software_event_data = SoftwareEventData { pointer };
    event(
        SOFTWARE_EVENT,
        EventData {
            software_event_data,
        },
    )
}
