//! IAs, pairs of connected EPs, and calls that many tests make.

use daplrkey::provider;
use daplrkey::sys::*;
use std::mem::zeroed;
use std::ptr::{null, null_mut};

/// Calls a function of the table, which must exist.
macro_rules! dat {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        let function = $crate::world::table().$function.unwrap();
        // SAFETY: handles are checked by the provider; all other arguments are valid.
        unsafe { function($($argument),*) }
    }};
}
pub(crate) use dat;

/// Like `dat!`, for a call that must succeed.
macro_rules! ok {
    ($function:ident($($argument:expr),* $(,)?)) => {
        assert_eq!($crate::world::kind(dat!($function($($argument),*))), SUCCESS, stringify!($function))
    };
}
pub(crate) use ok;

/// How long a test waits for something that must happen, in microseconds.
pub(crate) const PATIENCE: Timeout = 30_000_000;
/// How long a test waits to see that something does not happen, in microseconds.
pub(crate) const SHORT: Timeout = 50_000;

/// The function table of an IA with the loopback address.
pub(crate) fn table() -> &'static Provider {
    provider::entry(c"rkey-test", "127.0.0.1".into()).table()
}

/// The type of a return code, as `DAT_GET_TYPE`.
pub(crate) fn kind(code: Return) -> dat_return_type {
    code & TYPE_MASK
}

/// An open IA with a PZ.
pub(crate) struct World {
    pub(crate) ia: IaHandle,
    pub(crate) pz: PzHandle,
    pub(crate) async_evd: EvdHandle,
}

/// Registered memory.
pub(crate) struct Memory {
    pub(crate) bytes: Vec<u8>,
    pub(crate) lmr: LmrHandle,
    pub(crate) context: LmrContext,
    pub(crate) remote: RmrContext,
}

/// An EP with a separate EVD for each kind of event.
pub(crate) struct End {
    pub(crate) ep: EpHandle,
    pub(crate) recv: EvdHandle,
    pub(crate) request: EvdHandle,
    pub(crate) connect: EvdHandle,
}

pub(crate) fn cookie(bits: u64) -> Context {
    Context { as_64: bits }
}

/// An event with all bytes zero, to be filled in.
pub(crate) fn blank() -> Event {
    // SAFETY: all zeros is a valid event.
    unsafe { zeroed() }
}

/// Waits for an event.
pub(crate) fn wait(evd: EvdHandle) -> Event {
    let (mut event, mut more) = (blank(), 0);
    ok!(evd_wait_func(
        evd,
        PATIENCE,
        1,
        &raw mut event,
        &raw mut more
    ));
    assert_eq!(event.evd_handle, evd);
    event
}

/// Waits for an event with this number.
pub(crate) fn expect(evd: EvdHandle, number: dat_event_number) -> Event {
    let event = wait(evd);
    assert_eq!(event.event_number, number);
    event
}

/// Waits for the completion of a DTO; returns status and length.
pub(crate) fn completion(evd: EvdHandle, number: u64) -> (dat_dto_completion_status, u32) {
    let event = expect(evd, DTO_COMPLETION_EVENT);
    // SAFETY: the event number says which member is valid.
    let data = unsafe { event.event_data.dto_completion_event_data };
    // SAFETY: plain bits.
    assert_eq!(unsafe { data.user_cookie.as_64 }, number);
    (data.status, data.transfered_length)
}

/// Whether an EVD has no events.
pub(crate) fn empty(evd: EvdHandle) -> bool {
    kind(dat!(evd_dequeue_func(evd, &mut blank()))) == QUEUE_EMPTY
}

impl World {
    pub(crate) fn open() -> Self {
        let mut world = Self {
            ia: null_mut(),
            pz: null_mut(),
            async_evd: null_mut(),
        };
        let name = c"rkey-test".as_ptr().cast_mut();
        table();
        ok!(ia_open_func(
            name,
            8,
            &raw mut world.async_evd,
            &raw mut world.ia
        ));
        ok!(pz_create_func(world.ia, &raw mut world.pz));
        world
    }

    pub(crate) fn evd(&self, qlen: Count, flags: dat_evd_flags) -> EvdHandle {
        let mut evd = null_mut();
        ok!(evd_create_func(
            self.ia,
            qlen,
            null_mut(),
            flags,
            &raw mut evd
        ));
        evd
    }

    pub(crate) fn end(&self) -> End {
        self.end_with(&attr())
    }

    pub(crate) fn end_with(&self, attr: &EpAttr) -> End {
        self.end_in(self.pz, attr)
    }

    pub(crate) fn end_in(&self, pz: PzHandle, attr: &EpAttr) -> End {
        let dto = EVD_DTO_FLAG | EVD_RMR_BIND_FLAG;
        let (recv, request) = (self.evd(64, dto), self.evd(64, dto));
        let connect = self.evd(8, EVD_CONNECTION_FLAG);
        let mut ep = null_mut();
        ok!(ep_create_func(
            self.ia,
            pz,
            recv,
            request,
            connect,
            attr,
            &raw mut ep
        ));
        End {
            ep,
            recv,
            request,
            connect,
        }
    }

    pub(crate) fn memory(&self, len: usize, privileges: dat_mem_priv_flags) -> Memory {
        let mut memory = Memory {
            bytes: vec![0; len],
            lmr: null_mut(),
            context: 0,
            remote: 0,
        };
        let description = RegionDescription {
            for_va: memory.bytes.as_mut_ptr().cast(),
        };
        ok!(lmr_create_func(
            self.ia,
            MEM_TYPE_VIRTUAL,
            description,
            len as u64,
            self.pz,
            privileges,
            VA_TYPE_VA,
            &raw mut memory.lmr,
            &raw mut memory.context,
            &raw mut memory.remote,
            null_mut(),
            null_mut(),
        ));
        memory
    }

    /// A PSP with an EVD of its own: its handle, its EVD and its qualifier.
    pub(crate) fn psp(&self) -> (PspHandle, EvdHandle, ConnQual) {
        let evd = self.evd(8, EVD_CR_FLAG);
        let (mut psp, mut conn_qual) = (null_mut(), 0);
        let flags = PSP_CONSUMER_FLAG;
        ok!(psp_create_any_func(
            self.ia,
            &raw mut conn_qual,
            evd,
            flags,
            &raw mut psp
        ));
        (psp, evd, conn_qual)
    }

    pub(crate) fn address(&self) -> IaAddressPtr {
        // SAFETY: all zeros is a valid value.
        let mut attr: IaAttr = unsafe { zeroed() };
        ok!(ia_query_func(
            self.ia,
            null_mut(),
            IA_FIELD_ALL,
            &raw mut attr,
            0,
            null_mut()
        ));
        attr.ia_address_ptr
    }

    pub(crate) fn connect(&self, end: &End, conn_qual: ConnQual, data: &[u8]) {
        assert_eq!(self.try_connect(end.ep, conn_qual, data), SUCCESS);
    }

    pub(crate) fn try_connect(
        &self,
        ep: EpHandle,
        conn_qual: ConnQual,
        data: &[u8],
    ) -> dat_return_type {
        kind(dat!(ep_connect_func(
            ep,
            self.address(),
            conn_qual,
            PATIENCE,
            data.len() as Count,
            data.as_ptr().cast_mut().cast(),
            QOS_BEST_EFFORT,
            CONNECT_DEFAULT_FLAG
        )))
    }

    /// Waits for a connection request.
    pub(crate) fn request(&self, evd: EvdHandle) -> CrHandle {
        let event = expect(evd, CONNECTION_REQUEST_EVENT);
        // SAFETY: the event number says which member is valid.
        unsafe { event.event_data.cr_arrival_event_data }.cr_handle
    }

    /// Connects two EPs of two IAs: `self`'s is the active one.
    pub(crate) fn connect_to(&self, active: &End, other: &World, passive: &End) {
        let (psp, evd, conn_qual) = other.psp();
        self.connect(active, conn_qual, b"hello");
        let cr = other.request(evd);
        ok!(cr_accept_func(cr, passive.ep, 0, null_mut()));
        expect(active.connect, CONNECTION_EVENT_ESTABLISHED);
        expect(passive.connect, CONNECTION_EVENT_ESTABLISHED);
        ok!(psp_free_func(psp));
        ok!(evd_free_func(evd));
    }

    pub(crate) fn state(&self, end: &End) -> dat_ep_state {
        let mut state = 0;
        ok!(ep_get_status_func(
            end.ep,
            &raw mut state,
            null_mut(),
            null_mut()
        ));
        state
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let closed = dat!(ia_close_func(self.ia, CLOSE_ABRUPT_FLAG));
        if !std::thread::panicking() {
            assert_eq!(kind(closed), SUCCESS);
        }
    }
}

impl Memory {
    pub(crate) fn local(&self, offset: usize, len: usize) -> LmrTriplet {
        LmrTriplet {
            virtual_address: self.bytes.as_ptr() as u64 + offset as u64,
            segment_length: len as u32,
            lmr_context: self.context,
        }
    }

    pub(crate) fn remote(&self, offset: usize, len: usize) -> RmrTriplet {
        RmrTriplet {
            virtual_address: self.bytes.as_ptr() as u64 + offset as u64,
            segment_length: len as u32,
            rmr_context: self.remote,
        }
    }
}

impl End {
    pub(crate) fn send(
        &self,
        from: LmrTriplet,
        number: u64,
        flags: dat_completion_flags,
    ) -> Return {
        let mut from = from;
        dat!(ep_post_send_func(
            self.ep,
            1,
            &raw mut from,
            cookie(number),
            flags
        ))
    }

    pub(crate) fn recv(&self, to: LmrTriplet, number: u64, flags: dat_completion_flags) -> Return {
        let mut to = to;
        dat!(ep_post_recv_func(
            self.ep,
            1,
            &raw mut to,
            cookie(number),
            flags
        ))
    }

    pub(crate) fn write(
        &self,
        from: LmrTriplet,
        to: &RmrTriplet,
        number: u64,
        flags: dat_completion_flags,
    ) -> Return {
        let mut from = from;
        dat!(ep_post_rdma_write_func(
            self.ep,
            1,
            &raw mut from,
            cookie(number),
            to,
            flags
        ))
    }
}

/// Attributes for small tests.
pub(crate) fn attr() -> EpAttr {
    EpAttr {
        service_type: SERVICE_TYPE_RC,
        max_message_size: 1 << 20,
        max_rdma_size: 1 << 20,
        qos: QOS_BEST_EFFORT,
        recv_completion_flags: COMPLETION_DEFAULT_FLAG,
        request_completion_flags: COMPLETION_DEFAULT_FLAG,
        max_recv_dtos: 16,
        max_request_dtos: 16,
        max_recv_iov: 2,
        max_request_iov: 2,
        max_rdma_read_in: 4,
        max_rdma_read_out: 4,
        srq_soft_hw: 0,
        max_rdma_read_iov: 2,
        max_rdma_write_iov: 2,
        ep_transport_specific_count: 0,
        ep_transport_specific: null_mut(),
        ep_provider_specific_count: 0,
        ep_provider_specific: null_mut(),
    }
}

/// No attributes: the defaults.
pub(crate) const DEFAULTS: *const EpAttr = null();
