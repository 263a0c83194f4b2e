//! Programs that fork and exec while they have a device open.
// UNSAFETY: forks, and drops a copy of the parent's handles in the child.
#![allow(unsafe_code)]

mod common;

use common::{LONG, Peer, Side, role, sleep_in_read};
use rkey_device::DeviceError;
use rkey_engine::{Completion, RecvRequest, SendRequest, Work};

fn target() {
    let side = Side::open();
    let (_qp, _) = side.connect();
    sleep_in_read();
}

/// Runs `child` in a forked child and returns its exit status.
fn forked(child: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child runs only code that needs none of our other threads, and leaves with _exit.
    match unsafe { libc::fork() } {
        0 => {
            let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
            // SAFETY: ends the child without running destructors of the parent.
            unsafe { libc::_exit(if ok { 0 } else { 1 }) }
        }
        pid => {
            assert!(pid > 0);
            let mut status = 0;
            // SAFETY: `status` is valid for writes.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            status
        }
    }
}

fn is_forked<T>(result: Result<T, DeviceError>) -> bool {
    matches!(result, Err(DeviceError::Forked))
}

/// Calls on a child's handles return an error, and the handles can be dropped; the parent does not notice.
#[test]
fn a_child_cannot_use_its_parents_device() {
    if role().is_some() {
        return target();
    }
    let side = Side::open();
    let listener = side.listen();
    let peer = Peer::start(
        "a_child_cannot_use_its_parents_device",
        "target",
        listener.local_address(),
    );
    let (qp, remote) = side.accept(&listener);
    let write = Work::Write {
        remote: remote.at(0),
        imm: None,
    };
    side.run(&qp, write, &[side.sge(0, 8)]);
    for _ in 0..5 {
        let handles = (qp.clone(), side.cq.clone(), side.device.clone());
        let status = forked(|| {
            let (qp, cq, device) = handles;
            let sges = [side.sge(0, 8)];
            let request = SendRequest::new(1, write, &sges);
            let all = device.is_forked()
                && is_forked(qp.post_send(&request))
                && is_forked(qp.post_recv(&RecvRequest { id: 1, sges: &[] }))
                && is_forked(qp.query())
                && is_forked(cq.poll(&mut [Completion::default()]))
                && is_forked(cq.wait(Some(LONG)))
                && is_forked(device.create_cq(1, None))
                && is_forked(device.create_domain())
                && is_forked(device.listen("127.0.0.1:0".parse().unwrap()))
                && is_forked(device.inspect())
                && is_forked(device.deregister(side.region))
                && device.denials().is_empty();
            drop((qp, cq, device));
            // The child can open its own device while it holds the parent's handles.
            let own = Side::open();
            let own_cq_works = own.cq.poll(&mut [Completion::default()]).is_ok();
            all && own_cq_works
        });
        assert_eq!(status, 0);
        side.set(0, 99);
        side.run(&qp, write, &[side.sge(0, 8)]);
    }
    // Dropping all handles in a child does not harm the parent.
    let everything = (qp, side, listener);
    let child = &raw const everything;
    let status = forked(|| {
        // SAFETY: the child's own copy, which has no other user; the parent's is not affected.
        drop(unsafe { std::ptr::read(child) });
        true
    });
    assert_eq!(status, 0);
    let (qp, side, listener) = everything;
    side.run(&qp, write, &[side.sge(0, 8)]);
    drop((qp, side, listener));
    peer.finish();
}

/// Nothing of a device survives an exec.
#[test]
fn exec_closes_all_descriptors_of_a_device() {
    let side = Side::open();
    let _channel = side.device.create_channel().unwrap();
    let _memory = side.device.allocate_shared(4096, true).unwrap();
    let _listener = side.listen();
    let output = std::process::Command::new("ls")
        .args(["-l", "/proc/self/fd"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    for word in ["memfd", "anon_inode", "socket"] {
        assert!(!text.contains(word), "{text}");
    }
}

/// The device notices the end of a killed target even if a child of the target lives on with copies of its sockets.
#[test]
fn a_killed_peer_is_noticed_although_its_child_lives() {
    if role().is_some() {
        let side = Side::open();
        let (_qp, _) = side.connect();
        // SAFETY: the child only makes system calls, and leaves with _exit.
        if unsafe { libc::fork() } == 0 {
            let mut byte = 0u8;
            // The child lives until the test closes its standard input, and holds none of the test's other descriptors.
            // SAFETY: `byte` is valid for a write of one byte; the descriptors are the child's own.
            unsafe {
                libc::close(1);
                libc::close(2);
                while libc::read(0, (&raw mut byte).cast(), 1) > 0 {}
                libc::_exit(0)
            };
        }
        side.set(1, 1);
        return sleep_in_read();
    }
    let side = Side::open();
    let listener = side.listen();
    let mut peer = Peer::start(
        "a_killed_peer_is_noticed_although_its_child_lives",
        "target",
        listener.local_address(),
    );
    let (qp, remote) = side.accept(&listener);
    loop {
        side.run(
            &qp,
            Work::Read {
                remote: remote.at(1),
            },
            &[side.sge(5, 8)],
        );
        if side.word(5) == 1 {
            break;
        }
    }
    // The peer's input stays open so that the child of the peer lives on.
    let input = peer.0.stdin.take();
    peer.kill();
    let event = side.device.next_event(Some(common::LONG)).unwrap();
    assert!(event.is_some(), "the end of the peer was not seen");
    drop(input);
}
