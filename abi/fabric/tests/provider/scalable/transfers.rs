//! Transfers between the contexts of scalable endpoints, and with ordinary endpoints.

use super::*;
use crate::atomics::add;
use crate::messages::{trecv, tsend};
use crate::shared::{recv, send};

/// Messages of several lengths between each pair of contexts: they reach the context that their number names, in order, and
/// complete in the queues of their contexts.
#[test]
fn messages_between_each_pair_of_contexts_stay_in_order() {
    const LENS: [usize; 4] = [8, 300, 60_000, 9000];
    const ROUNDS: usize = 6;
    for auto_progress in [false, true] {
        let wish = Wish {
            auto_progress,
            ..Wish::default()
        };
        let (a, b) = (Scalable::open(&wish, 3, 1), Scalable::open(&wish, 1, 2));
        let to = a.peer(&b);
        let content = |tx: usize, rx: usize, round: usize| {
            let len = LENS[(round + tx) % LENS.len()];
            let mut bytes = vec![(tx * 50 + rx * 20 + round) as u8; len];
            (bytes[0], bytes[1], bytes[2]) = (tx as u8, rx as u8, round as u8);
            bytes
        };
        let mut sent = Vec::new();
        for round in 0..ROUNDS {
            for (index, tx) in a.tx.iter().enumerate() {
                for rx in 0..b.rx.len() {
                    sent.push(content(index, rx, round));
                    send(tx, rx_addr(to, rx), sent.last().unwrap());
                }
            }
        }
        let sides = all(&[&a, &b]);
        for (index, rx) in b.rx.iter().enumerate() {
            let mut rounds = [0usize; 3];
            for _ in 0..a.tx.len() * ROUNDS {
                let mut into = vec![0; 60_000];
                assert_eq!(recv(rx.ep, &mut into, 7), 0);
                let entry = rx.completion(&sides).unwrap();
                let tx = usize::from(into[0]);
                into.truncate(entry.len);
                assert!(into == content(tx, index, rounds[tx]), "{tx} to {index}");
                rounds[tx] += 1;
            }
            assert!(poll(rx.cq).is_none());
        }
        for tx in &a.tx {
            for _ in 0..b.rx.len() * ROUNDS {
                tx.completion(&sides).unwrap();
            }
            assert!(poll(tx.cq).is_none());
        }
        a.close();
        b.close();
    }
}

/// A tag matches only in the context that the message was sent to.
#[test]
fn each_context_matches_tags_separately() {
    let wish = Wish::default();
    let (a, b) = (Scalable::open(&wish, 1, 1), Scalable::open(&wish, 1, 3));
    let to = a.peer(&b);
    let sides = all(&[&a, &b]);
    let mut into = [[0u8; 4]; 3];
    for (rx, into) in b.rx.iter().zip(&mut into) {
        trecv(rx, FI_ADDR_UNSPEC, into, 5, 0, 1);
    }
    for index in [2, 0] {
        tsend(&a.tx[0], rx_addr(to, index), &[index as u8 + 1; 4], 5, 0);
        a.tx[0].completion(&sides).unwrap();
        assert_eq!(b.rx[index].completion(&sides).unwrap().tag, 5);
    }
    assert!(poll(b.rx[1].cq).is_none());
    // Receives that still wait in a context can be canceled only in that context.
    let cancel = |side: &Side, context: usize| {
        // SAFETY: the handle is live.
        unsafe { ((*(*side.ep).ops).cancel)(side.ep.cast(), context as *mut _) }
    };
    assert_eq!(cancel(&b.rx[0], 1), -(libc::ENOENT as isize));
    assert_eq!(cancel(&a.tx[0], 1), -(libc::ENOENT as isize));
    assert_eq!(cancel(&b.rx[1], 1), 0);
    let canceled = b.rx[1].completion(&sides).unwrap_err();
    assert_eq!((canceled.err, canceled.tag), (libc::ECANCELED, 0));
    assert_eq!(into, [[1; 4], [0; 4], [3; 4]]);
}

/// A receive for one sender gets the messages of all the sender's transmit contexts, and completions carry the sender's
/// number.
#[test]
fn all_transmit_contexts_of_an_endpoint_share_its_address() {
    let wish = Wish::default();
    let (a, b) = (Scalable::open(&wish, 2, 1), Scalable::open(&wish, 1, 2));
    let other = Side::open(&wish);
    let (to, from) = (a.peer(&b), b.peer(&a));
    let sides = [all(&[&a, &b]), vec![&other]].concat();
    let rx = &b.rx[1];
    // Address vectors without these bits cannot name a context, so this message goes to the first.
    send(&other, other.insert(&name_of(b.sep)), b"other");
    let mut into = [[0u8; 5]; 2];
    for (index, into) in into.iter_mut().enumerate() {
        trecv(rx, rx_addr(from, 1), into, 0, u64::MAX, index);
        tsend(&a.tx[index], rx_addr(to, 1), &[index as u8 + 1; 5], 9, 0);
        assert_eq!(rx.completion(&sides).unwrap().op_context as usize, index);
    }
    assert_eq!(into, [[1; 5], [2; 5]]);
    let mut unnamed = [0u8; 5];
    assert_eq!(recv(b.rx[0].ep, &mut unnamed, 0), 0);
    assert_eq!(b.rx[0].completion(&sides).unwrap().len, 5);
    assert_eq!(&unnamed, b"other");

    // The sources of messages.
    let mut last = [0u8; 2];
    assert_eq!(recv(rx.ep, &mut last, 0), 0);
    send(&a.tx[1], rx_addr(to, 1), &[3; 2]);
    let (mut source, mut entry) = (0, [0u8; 64]);
    let code = again(|| {
        for side in &sides {
            // SAFETY: the handle is live; takes nothing.
            unsafe { ((*(*side.cq).ops).read)(side.cq, null_mut(), 0) };
        }
        // SAFETY: a live handle, and room for an entry and a number.
        unsafe { ((*(*rx.cq).ops).readfrom)(rx.cq, entry.as_mut_ptr().cast(), 1, &mut source) }
    });
    assert_eq!((code, source), (1, from));
}

/// Reads, writes and atomics work through any pair of contexts. Data and counts appear at the named context.
#[test]
fn one_sided_operations_can_name_a_receive_context() {
    let wish = Wish {
        caps: FI_MSG | FI_RMA | FI_ATOMIC | FI_RMA_EVENT | FI_NAMED_RX_CTX,
        ..Wish::default()
    };
    let a = Scalable::open(&wish, 2, 1);
    let b = Scalable::disabled(&wish, 1, 2);
    let counters = [(); 2].map(|()| counter(b.domain));
    for (rx, counter) in b.rx.iter().zip(counters) {
        assert_eq!(bind(rx.ep.cast(), counter.cast(), FI_REMOTE_WRITE), 0);
    }
    let written = counter(a.domain);
    let tx = a.transmit_with(written);
    assert_eq!(b.rx.iter().map(Side::enable).sum::<c_int>(), 0);
    let to = a.peer(&b);
    let mut memory = vec![0u8; 64];
    let mr = b.rx[0].reg(&mut memory, REMOTE, 1, 0).unwrap();
    for (side, rx) in [(&a.tx[0], 1), (&a.tx[1], 1), (&tx, 0)] {
        let peer = rx_addr(to, rx);
        assert_eq!(side.write(peer, &[7; 16], 0, 1), 0);
        let mut back = [0u8; 16];
        assert_eq!(side.read(peer, &mut back, 0, 1), 0);
        assert_eq!(back, [7; 16]);
        assert_eq!(add(side, &b.rx[rx], peer, 5, 32, 1), 0);
    }
    assert_eq!(memory[32..36], 15u32.to_ne_bytes());
    // Each of the three senders has made one write and one atomic; reads do not count.
    assert_eq!(wait_count(counters[0], 2), 2);
    assert_eq!(wait_count(counters[1], 4), 4);
    assert_eq!(wait_count(written, 2), 2, "of that transmit context");

    let data = |side: &Side, peer| {
        // SAFETY: the handle is live; the bytes stay valid until the completion.
        let code = again(|| unsafe {
            let write = (*(*side.ep).rma).writedata;
            let at = [1u8; 4].as_ptr().cast();
            write(side.ep, at, 4, null_mut(), 0xda7a, peer, 0, 1, null_mut())
        });
        assert_eq!(code, 0);
    };
    data(&a.tx[1], rx_addr(to, 1));
    let entry = b.rx[1].completion(&all(&[&a])).unwrap();
    assert_eq!(
        (entry.data, entry.flags & FI_REMOTE_WRITE),
        (0xda7a, FI_REMOTE_WRITE)
    );
    assert!(poll(b.rx[0].cq).is_none());
    a.tx[1].completion(&all(&[&b])).unwrap();
    assert_eq!(mr.close(), 0);
}

impl Scalable {
    /// A transmit context of another scalable endpoint, with a counter of its writes.
    fn transmit_with(&self, written: *mut FidCntr) -> Side {
        let info = info_for(&Wish::default(), 1, 1);
        let sep = scalable_ep(self.domain, info).unwrap();
        assert_eq!(bind(sep.cast(), self.av.cast(), 0), 0);
        let side = self.side(tx_context(sep, 0, null_mut()).unwrap(), FI_SEND);
        assert_eq!(bind(side.ep.cast(), written.cast(), FI_WRITE), 0);
        assert_eq!(side.enable(), 0);
        side
    }
}

/// Ordinary endpoints and scalable ones send to each other. Messages to the address of a scalable endpoint reach a receive
/// context, even if a transmit context has connected before.
#[test]
fn ordinary_endpoints_and_contexts_exchange_messages() {
    for ep_type in [FI_EP_RDM, FI_EP_DGRAM] {
        let wish = Wish {
            ep_type,
            ..Wish::default()
        };
        let a = Scalable::open(&wish, 2, 2);
        let info = naming(&wish).info();
        let (ep, cq, _) = open_disabled(a.domain, info);
        let plain = Side {
            fabric: a.fabric,
            domain: a.domain,
            cq,
            av: a.av,
            ep,
            eq: null_mut(),
        };
        assert_eq!(bind(ep.cast(), a.av.cast(), 0), 0);
        assert_eq!(plain.enable(), 0);
        let (to_plain, to_a) = (plain.peer(&plain), plain.insert(&name_of(a.sep)));
        let sides = [all(&[&a]), vec![&plain]].concat();
        for (round, tx) in [0, 1, 0].into_iter().enumerate() {
            let mut into = [0u8; 3];
            assert_eq!(recv(ep, &mut into, 0), 0);
            send(&a.tx[tx], to_plain, &[round as u8; 3]);
            a.tx[tx].completion(&sides).unwrap();
            assert_eq!(plain.completion(&sides).unwrap().len, 3);
            assert_eq!(into, [round as u8; 3]);
        }
        for index in [0, 1] {
            let mut into = [0u8; 2];
            assert_eq!(recv(a.rx[index].ep, &mut into, 0), 0);
            send(&plain, rx_addr(to_a, index), &[9; 2]);
            plain.completion(&sides).unwrap();
            assert_eq!(a.rx[index].completion(&sides).unwrap().len, 2);
            assert_eq!(into, [9; 2]);
        }
        assert!(a.tx.iter().all(|tx| poll(tx.cq).is_none()));
        assert_eq!([close(ep.cast()), close(cq.cast())], [0; 2]);
    }
}

/// A scalable endpoint sends to its own receive contexts.
#[test]
fn a_scalable_endpoint_reaches_itself() {
    let a = Scalable::open(&Wish::default(), 2, 2);
    let to = a.peer(&a);
    let sides = all(&[&a]);
    for (tx, rx) in [(0, 0), (0, 1), (1, 1), (1, 0)] {
        let (bytes, mut into) = (vec![tx as u8 + 1; 20_000], vec![0u8; 20_000]);
        assert_eq!(recv(a.rx[rx].ep, &mut into, 0), 0);
        send(&a.tx[tx], rx_addr(to, rx), &bytes);
        a.rx[rx].completion(&sides).unwrap();
        a.tx[tx].completion(&sides).unwrap();
        assert!(into == bytes);
    }
    a.close();
}

/// Each context has its own thread.
#[test]
fn each_context_can_be_used_by_its_own_thread() {
    const CONTEXTS: usize = 3;
    const MESSAGES: usize = 300;
    /// A side for a thread.
    struct Own<'a>(&'a Side);
    // SAFETY: handles may be used in any thread (FI_THREAD_SAFE).
    unsafe impl Send for Own<'_> {}
    let wish = Wish::default();
    let (a, b) = (
        Scalable::open(&wish, CONTEXTS, 1),
        Scalable::open(&wish, 1, CONTEXTS),
    );
    let to = a.peer(&b);
    std::thread::scope(|scope| {
        for (index, tx) in a.tx.iter().enumerate() {
            let tx = Own(tx);
            scope.spawn(move || {
                let Own(tx) = { tx };
                for n in 0..MESSAGES {
                    tsend(tx, rx_addr(to, index), &(n as u64).to_ne_bytes(), 1, 0);
                    tx.completion(&[]).unwrap();
                }
            });
        }
        for rx in &b.rx {
            let rx = Own(rx);
            scope.spawn(move || {
                let Own(rx) = { rx };
                for n in 0..MESSAGES {
                    let mut into = [0; 8];
                    trecv(rx, FI_ADDR_UNSPEC, &mut into, 1, 0, 0);
                    rx.completion(&[]).unwrap();
                    assert_eq!(u64::from_ne_bytes(into), n as u64);
                }
            });
        }
    });
    a.close();
    b.close();
}
