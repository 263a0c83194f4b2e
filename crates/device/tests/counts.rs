//! Peers' accesses are counted, and listeners are called.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use common::{LONG, Remote, Side, until};
use rkey_device::{CountListener, Device};
use rkey_engine::Work;

const COUNTER: u32 = 7;

/// Records the counter each time it is called.
struct Ear {
    device: Device,
    heard: AtomicU64,
}

impl CountListener for Ear {
    fn counted(&self) {
        let writes = self.device.counter(COUNTER).writes;
        self.heard.store(writes, Ordering::Release);
    }
}

#[test]
fn a_listener_is_told_of_every_count_until_it_is_dropped() {
    let (server, client) = (Side::open(), Side::open());
    server
        .device
        .bind_counter(server.region.id, COUNTER)
        .unwrap();
    let listener = server.listen();
    let (qp, remote, _theirs) = std::thread::scope(|scope| {
        let accepted = scope.spawn(|| server.accept(&listener).0);
        let (qp, address) = (client.qp(), listener.local_address());
        let ours = client.invitation();
        let peer = client.device.connect(address, &[&qp], &ours, LONG).unwrap();
        let remote = Remote::from(&peer.private_data[..]);
        (qp, remote, accepted.join().unwrap())
    });
    let ears = [(); 2].map(|()| {
        Arc::new(Ear {
            device: server.device.clone(),
            heard: AtomicU64::new(0),
        })
    });
    for ear in &ears {
        let ear: Weak<Ear> = Arc::downgrade(ear);
        server.device.listen_to_counts(ear);
    }
    let [stays, goes] = ears;
    let write = || {
        let work = Work::Write {
            remote: remote.at(0),
            imm: None,
        };
        client.run(&qp, work, &[client.sge(0, 8)]);
    };
    for times in 1..=3 {
        write();
        until("the count", || stays.heard.load(Ordering::Acquire) == times);
    }
    until("the other's", || goes.heard.load(Ordering::Acquire) == 3);
    let gone = Arc::downgrade(&goes);
    drop(goes);
    until("its end", || gone.strong_count() == 0);
    write();
    until("the count", || stays.heard.load(Ordering::Acquire) == 4);
}
