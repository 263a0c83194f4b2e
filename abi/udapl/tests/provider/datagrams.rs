//! Datagram EPs, and the other parts of the InfiniBand extension.

use crate::world::*;
use daplrkey::sys::*;
use std::mem::zeroed;
use std::ptr::null_mut;

/// Calls an extended operation with these arguments, as a C compiler would pass them.
fn extended(handle: Handle, op: dat_ib_op, arguments: &[u64]) -> Return {
    let mut stack = arguments.to_vec();
    let mut registers = [0u64; 6];
    let mut list = VaListTag {
        // All registers are used up, so all arguments are on the stack.
        gp_offset: 48,
        fp_offset: 0,
        overflow_arg_area: stack.as_mut_ptr().cast(),
        reg_save_area: registers.as_mut_ptr().cast(),
    };
    dat!(handle_extendedop_func(handle, op, &raw mut list))
}

/// The data of an extended event.
fn details(event: &Event) -> IbExtensionEventData {
    // SAFETY: an extended event contains it, with the same alignment.
    unsafe { *(&raw const event.event_extension_data).cast() }
}

fn address(event: &Event) -> IbAddrHandle {
    // SAFETY: the event of an address.
    unsafe { details(event).subject.remote_ah }
}

#[test]
fn datagrams_reach_every_ep_whose_address_is_known() {
    let (one, two) = (World::open(), World::open());
    let attr = EpAttr {
        service_type: IB_SERVICE_TYPE_UD,
        max_message_size: 4096,
        ..attr()
    };
    let sender = one.end_with(&attr);
    let receivers = [two.end_with(&attr), two.end_with(&attr)];
    let (_, evd, conn_qual) = two.psp();
    for _ in &receivers {
        assert_eq!(one.try_connect(sender.ep, conn_qual, b"who"), SUCCESS);
    }
    let mut addresses = Vec::new();
    for receiver in &receivers {
        let event = expect(evd, IB_UD_CONNECTION_REQUEST_EVENT);
        assert_eq!(details(&event).kind, IB_UD_CONNECT_REQUEST);
        // SAFETY: the event of a request.
        let cr = unsafe { event.event_data.cr_arrival_event_data }.cr_handle;
        let connected = two.end();
        let code = dat!(cr_accept_func(cr, connected.ep, 0, null_mut()));
        assert_eq!(kind(code), INVALID_HANDLE, "not a datagram EP");
        ok!(cr_accept_func(cr, receiver.ep, 0, null_mut()));
        let event = expect(sender.connect, IB_UD_CONNECTION_EVENT_ESTABLISHED);
        assert_eq!(details(&event).kind, IB_UD_REMOTE_AH);
        addresses.push(address(&event));
        let event = expect(receiver.connect, IB_UD_CONNECTION_EVENT_ESTABLISHED);
        assert_eq!(details(&event).kind, IB_UD_PASSIVE_REMOTE_AH);
        // The CR had the data; keeping it for this event would let peers use up memory.
        // SAFETY: the event of a connection.
        let data = unsafe { event.event_data.connect_event_data };
        assert_eq!(data.private_data_size, 0);
        assert!(!address(&event).ah.is_null());
    }
    let [mut mine, theirs] = [&one, &two].map(|it| it.memory(256, MEM_PRIV_ALL_FLAG));
    mine.bytes[..5].copy_from_slice(b"hello");
    for (receiver, to) in receivers.iter().zip(&addresses) {
        assert_eq!(receiver.recv(theirs.local(0, 200), 4, 0), SUCCESS);
        let from = mine.local(0, 5);
        let arguments = [
            1,
            &raw const from as u64,
            &raw const *to as u64,
            3,
            u64::from(COMPLETION_DEFAULT_FLAG),
        ];
        assert_eq!(extended(sender.ep, IB_UD_SEND_OP, &arguments), SUCCESS);
        assert_eq!(
            details(&expect(sender.request, IB_DTO_EVENT)).kind,
            IB_UD_SEND
        );
        let event = expect(receiver.recv, IB_DTO_EVENT);
        assert_eq!(details(&event).kind, IB_UD_RECV);
        // SAFETY: the event of a DTO.
        let data = unsafe { event.event_data.dto_completion_event_data };
        assert_eq!((data.status, data.transfered_length), (DTO_SUCCESS, 45));
        assert_eq!(theirs.bytes[40..45], *b"hello");
        assert_eq!(
            extended(sender.ep, IB_UD_AH_FREE_OP, &[to.ah as u64]),
            SUCCESS
        );
    }
    assert_eq!(
        kind(sender.send(mine.local(0, 5), 1, 0)),
        MODEL_NOT_SUPPORTED
    );
}

#[test]
fn immediate_data_and_atomics_have_their_own_events() {
    let (one, two) = (World::open(), World::open());
    let (active, passive) = (one.end(), two.end());
    one.connect_to(&active, &two, &passive);
    let [mine, mut theirs] = [
        MEM_PRIV_ALL_FLAG,
        MEM_PRIV_ALL_FLAG | IB_MEM_PRIV_REMOTE_ATOMIC,
    ]
    .map(|privileges| (privileges, 64))
    .map(|(privileges, len)| match privileges {
        MEM_PRIV_ALL_FLAG => one.memory(len, privileges),
        _ => two.memory(len, privileges),
    });
    theirs.bytes[..8].copy_from_slice(&40u64.to_ne_bytes());
    assert_eq!(passive.recv(theirs.local(32, 8), 6, 0), SUCCESS);
    let (local, remote) = (mine.local(0, 8), theirs.remote(0, 8));
    let (from, to) = (&raw const local as u64, &raw const remote as u64);
    let add = [2, from, 11, to, 0];
    assert_eq!(extended(active.ep, IB_FETCH_AND_ADD_OP, &add), SUCCESS);
    let swap = [42, 99, from, 12, to, 0];
    assert_eq!(extended(active.ep, IB_CMP_AND_SWAP_OP, &swap), SUCCESS);
    for (expected, operation) in [
        (IB_FETCH_AND_ADD, IB_DTO_FETCH_ADD),
        (IB_CMP_AND_SWAP, IB_DTO_CMP_SWAP),
    ] {
        let event = expect(active.request, IB_DTO_EVENT);
        assert_eq!(
            (details(&event).kind, details(&event).status),
            (expected, OP_SUCCESS)
        );
        // SAFETY: the event of a DTO.
        let data = unsafe { event.event_data.dto_completion_event_data };
        assert_eq!((data.status, data.operation), (DTO_SUCCESS, operation));
    }
    assert_eq!(theirs.bytes[..8], 99u64.to_ne_bytes());
    assert_eq!(mine.bytes[..8], 42u64.to_ne_bytes(), "the old value");
    let write = [1, from, 13, to, 0xabcd, 0];
    assert_eq!(extended(active.ep, IB_RDMA_WRITE_IMMED_OP, &write), SUCCESS);
    let event = expect(active.request, IB_DTO_EVENT);
    assert_eq!(details(&event).kind, IB_RDMA_WRITE_IMMED);
    let event = expect(passive.recv, IB_DTO_EVENT);
    assert_eq!(details(&event).kind, IB_RDMA_WRITE_IMMED_DATA);
    // SAFETY: the event of immediate data.
    assert_eq!(unsafe { details(&event).val.immed.data }, 0xabcd);
    assert_eq!(kind(extended(active.ep, 9999, &[])), NOT_IMPLEMENTED);
    assert_eq!(
        kind(extended(one.pz, IB_FETCH_AND_ADD_OP, &add)),
        INVALID_HANDLE
    );
}

#[test]
fn attributes_can_be_queried_without_an_open_ia() {
    table();
    // SAFETY: all zeros is a valid value.
    let (mut ia_attr, mut attr): (IaAttr, ProviderAttr) = unsafe { (zeroed(), zeroed()) };
    let mut ia: IaHandle = null_mut();
    let arguments = [
        &raw mut ia as u64,
        IA_FIELD_ALL,
        &raw mut ia_attr as u64,
        PROVIDER_FIELD_ALL,
        &raw mut attr as u64,
    ];
    let name = c"rkey-test".as_ptr().cast_mut().cast();
    assert_eq!(extended(name, IB_OPEN_QUERY_OP, &arguments), SUCCESS);
    assert_eq!(ia_attr.extension_supported, EXTENSION_IB);
    assert_eq!((attr.dapl_version_major, attr.is_thread_safe), (2, FALSE));
    assert_eq!(extended(ia, IB_CLOSE_QUERY_OP, &[]), SUCCESS);
    assert_eq!(kind(extended(ia, IB_CLOSE_QUERY_OP, &[])), INVALID_HANDLE);
}

/// A datagram EP that the program has disconnected stays disconnected when an address arrives late.
#[test]
fn a_late_address_does_not_revive_an_ep() {
    let (one, two) = (World::open(), World::open());
    let attr = EpAttr {
        service_type: IB_SERVICE_TYPE_UD,
        max_message_size: 4096,
        ..attr()
    };
    let (asking, giving) = (one.end_with(&attr), two.end_with(&attr));
    let (_, evd, conn_qual) = two.psp();
    let request = || {
        assert_eq!(one.try_connect(asking.ep, conn_qual, &[]), SUCCESS);
        let event = expect(evd, IB_UD_CONNECTION_REQUEST_EVENT);
        // SAFETY: the event of a request.
        unsafe { event.event_data.cr_arrival_event_data }.cr_handle
    };
    ok!(cr_accept_func(request(), giving.ep, 0, null_mut()));
    expect(asking.connect, IB_UD_CONNECTION_EVENT_ESTABLISHED);
    expect(giving.connect, IB_UD_CONNECTION_EVENT_ESTABLISHED);
    let late = request();
    ok!(ep_disconnect_func(asking.ep, CLOSE_ABRUPT_FLAG));
    expect(asking.connect, CONNECTION_EVENT_DISCONNECTED);
    assert_eq!(one.try_connect(asking.ep, conn_qual, &[]), INVALID_STATE);
    ok!(cr_accept_func(late, giving.ep, 0, null_mut()));
    // The request was withdrawn, or its answer came too late.
    let event = wait(giving.connect);
    let either = [
        IB_UD_CONNECTION_EVENT_ESTABLISHED,
        IB_UD_CONNECTION_ERROR_EVENT,
    ];
    assert!(either.contains(&event.event_number));
    assert_eq!(one.state(&asking), EP_STATE_DISCONNECTED);
    assert!(empty(asking.connect));
}
