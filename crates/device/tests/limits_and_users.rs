//! Limits, invalid addresses, misbehaving clients and other users.

mod common;

use std::cell::RefCell;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::{LONG, Peer, Side, command, role, sleep_in_read, until};
use rkey_core::Reason;
use rkey_device::{Config, Device, DeviceError, Inspection, QpOptions, list_devices};
use rkey_engine::{SendRequest, Status, Work};

fn with(name: &str, value: &str) -> Config {
    let mut config = Config::default();
    config.set(name, value).unwrap();
    config
}

/// The error of every limit names the limit and the variable that raises it.
#[test]
fn errors_name_the_limit_that_was_reached() {
    let device = Device::open(with("RKEY_MAX_QPS", "2")).unwrap();
    let domain = device.create_domain().unwrap();
    let cq = device.create_cq(16, None).unwrap();
    let options = QpOptions::new(domain, &cq);
    let first = device.create_qp(&options).unwrap();
    let _second = device.create_qp(&options).unwrap();
    let error = device.create_qp(&options).unwrap_err().to_string();
    assert!(
        error.contains("2 queue pairs") && error.contains("RKEY_MAX_QPS"),
        "{error}"
    );
    drop(first);
    device.create_qp(&options).unwrap();

    let device = Device::open(with("RKEY_MAX_CQS", "1")).unwrap();
    let _cq = device.create_cq(16, None).unwrap();
    let error = device.create_cq(16, None).unwrap_err().to_string();
    assert!(error.contains("RKEY_MAX_CQS"), "{error}");

    let device = Device::open(with("RKEY_MAX_CQ_DEPTH", "10")).unwrap();
    let error = device.create_cq(11, None).unwrap_err().to_string();
    assert!(
        error.contains("11") && error.contains("RKEY_MAX_CQ_DEPTH"),
        "{error}"
    );

    let device = Device::open(with("RKEY_MAX_QUEUE_DEPTH", "10")).unwrap();
    let domain = device.create_domain().unwrap();
    let cq = device.create_cq(10, None).unwrap();
    let options = QpOptions {
        max_send: 11,
        ..QpOptions::new(domain, &cq)
    };
    let error = device.create_qp(&options).unwrap_err().to_string();
    assert!(
        error.contains("11 sends") && error.contains("RKEY_MAX_QUEUE_DEPTH"),
        "{error}"
    );

    let device = Device::open(with("RKEY_MAX_DOMAINS", "1")).unwrap();
    device.create_domain().unwrap();
    let error = device.create_domain().unwrap_err().to_string();
    assert!(error.contains("RKEY_MAX_DOMAINS"), "{error}");

    let device = Device::open(with("RKEY_MAX_REGION_BYTES", "4k")).unwrap();
    let error = device.allocate_shared(8192, false).unwrap_err().to_string();
    assert!(
        error.contains("8192") && error.contains("RKEY_MAX_REGION_BYTES"),
        "{error}"
    );
}

/// A queue pair of one device cannot complete in a queue of another.
#[test]
fn a_completion_queue_of_another_device_is_refused() {
    let (a, b) = (Side::open(), Side::open());
    let options = QpOptions::new(a.domain, &b.cq);
    let error = a.device.create_qp(&options).unwrap_err();
    assert!(matches!(error, DeviceError::Unknown { .. }), "{error}");
}

/// Addresses of other hosts, addresses without a listener, and addresses in use.
#[test]
fn unusable_addresses_are_refused() {
    let side = Side::open();
    let elsewhere = "192.0.2.1:5000".parse().unwrap();
    let error = side.device.listen(elsewhere).unwrap_err().to_string();
    assert!(error.contains("not an address of this host"), "{error}");
    let qp = side.qp();
    let error = side
        .device
        .connect(elsewhere, &[&qp], &[], LONG)
        .unwrap_err()
        .to_string();
    assert!(error.contains("set RKEY_WIRE=auto"), "{error}");

    let listener = side.listen();
    let error = side.device.listen(listener.local_address()).unwrap_err();
    assert!(matches!(error, DeviceError::AddressInUse { .. }), "{error}");
    let address = listener.local_address();
    drop(listener);
    // The reservation keeps other programs from listening there in the meantime.
    let _reserved = side.device.reserve(address).unwrap();
    let started = Instant::now();
    let short = Duration::from_millis(50);
    let error = side
        .device
        .connect(address, &[&qp], &[], short)
        .unwrap_err();
    assert!(matches!(error, DeviceError::NotListening { .. }), "{error}");
    assert!(started.elapsed() >= short);

    // A wildcard listener accepts connections to every address of the host.
    let listener = side
        .device
        .listen(([0, 0, 0, 0], address.port()).into())
        .unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            listener
                .accept(Some(LONG))
                .unwrap()
                .reject("not\u{7} today")
        });
        let error = side.device.connect(address, &[&qp], &[], LONG).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the peer refused the connection: not  today"
        );
    });

    let long = vec![0; rkey_device::connect::PRIVATE_DATA_MAX + 1];
    let error = side
        .device
        .connect(address, &[&qp], &long, LONG)
        .unwrap_err();
    assert!(matches!(error, DeviceError::TooLong { .. }), "{error}");
}

/// The listener may start after the client.
#[test]
fn connecting_waits_for_the_listener() {
    let side = Side::open();
    let reserved = side.device.reserve(([127, 0, 0, 1], 0).into()).unwrap();
    let address = reserved.local_address();
    let side = &side;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            let listener = reserved.listen().unwrap();
            let qp = side.qp();
            listener
                .accept(Some(LONG))
                .unwrap()
                .accept(&[&qp], b"welcome")
                .unwrap();
        });
        let qp = side.qp();
        let peer = side
            .device
            .connect(address, &[&qp], b"hello", LONG)
            .unwrap();
        assert_eq!(peer.private_data, b"welcome");
        assert_eq!(peer.pid, std::process::id());
    });
}

/// Clients that stay silent or violate the protocol do not delay others, at a listener and at the device's own sockets.
#[test]
fn clients_that_are_silent_or_send_garbage_delay_no_others() {
    let side = Side::open();
    let listener = side.listen();
    let uid = rustix::process::geteuid().as_raw();
    let block = side.device.inspect().unwrap().blocks[0];
    let mut sockets = Vec::new();
    for name in [
        format!("rkey/1/{uid}/listen/{}", listener.local_address()),
        format!("rkey/1/{uid}/qp/{block:04x}"),
    ] {
        for n in 0..100usize {
            let socket = rustix::net::socket(
                rustix::net::AddressFamily::UNIX,
                rustix::net::SocketType::SEQPACKET,
                None,
            )
            .unwrap();
            let address = rustix::net::SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
            rustix::net::connect(&socket, &address).unwrap();
            if n % 2 == 0 {
                let garbage: Vec<u8> = (0..=n * 3).map(|i| (i * 37 + n) as u8).collect();
                let _ = rustix::net::send(&socket, &garbage, rustix::net::SendFlags::NOSIGNAL);
            }
            sockets.push(socket);
        }
    }
    std::thread::scope(|scope| {
        let accept = scope.spawn(|| {
            let qp = side.qp();
            listener
                .accept(Some(LONG))
                .unwrap()
                .accept(&[&qp], &[])
                .unwrap();
            qp
        });
        let far = Side::open();
        let qp = far.qp();
        far.device
            .connect(listener.local_address(), &[&qp], &[], LONG)
            .unwrap();
        let _other = accept.join().unwrap();
        // The write needs a link through the besieged socket.
        let remote = common::Remote::from(&side.invitation()[..]);
        far.run(
            &qp,
            Work::Write {
                remote: remote.at(0),
                imm: None,
            },
            &[far.sge(0, 8)],
        );
    });
}

/// Devices of this user are listed with their objects, also while their programs sleep. The device of a stopped program is left
/// out, and delays the list by at most a second.
#[test]
fn devices_are_listed() {
    if role().is_some() {
        let side = Side::open();
        let (_qp, _) = side.connect();
        return sleep_in_read();
    }
    let side = Side::open();
    let listener = side.listen();
    let peers: Vec<Peer> = (0..2)
        .map(|_| Peer::start("devices_are_listed", "target", listener.local_address()))
        .collect();
    let _qps = [side.accept(&listener), side.accept(&listener)];
    // A device whose process gets no processor for a second is left out.
    let list = RefCell::new(Vec::new());
    let has = |pid| list.borrow().iter().any(|i: &Inspection| i.pid == pid);
    let listed = |pids: &[u32]| {
        *list.borrow_mut() = list_devices(&Config::default()).unwrap();
        pids.iter().all(|&pid| has(pid))
    };
    let [one, two] = [0, 1].map(|at: usize| peers[at].0.id());
    let everybody = [one, two, std::process::id()];
    until("a list of all devices", || listed(&everybody));
    for found in list.borrow().iter().filter(|i| [one, two].contains(&i.pid)) {
        assert_eq!((found.regions, found.qps.len(), found.cqs.len()), (1, 1, 1));
        assert_eq!(found.qps[0].state, "RTS");
        assert!(found.command.contains("devices_are_listed"));
    }
    peers[0].stop();
    until("a list of those that answer", || {
        let complete = listed(&everybody[1..]);
        assert!(!has(one), "it does not answer");
        complete
    });
    peers[0].signal(libc::SIGCONT);
    peers.into_iter().for_each(Peer::finish);
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A program of uid 65534, without a home, works like any other.
#[test]
fn a_program_of_an_unprivileged_user_works() {
    match role().as_deref() {
        Some("unprivileged") => {
            assert_eq!(rustix::process::geteuid().as_raw(), 65534);
            let side = Side::open();
            let listener = side.listen();
            let test = "a_program_of_an_unprivileged_user_works";
            let peer = Peer::start(test, "target", listener.local_address());
            let (qp, remote) = side.accept(&listener);
            side.set(0, 7);
            side.run(
                &qp,
                Work::Write {
                    remote: remote.at(1),
                    imm: None,
                },
                &[side.sge(0, 8)],
            );
            side.run(
                &qp,
                Work::Read {
                    remote: remote.at(1),
                },
                &[side.sge(2, 8)],
            );
            assert_eq!(side.word(2), 7);
            assert!(!list_devices(&Config::default()).unwrap().is_empty());
            return peer.finish();
        }
        Some(_) => {
            let side = Side::open();
            let (_qp, _) = side.connect();
            return sleep_in_read();
        }
        None => {}
    }
    if !is_root() {
        eprintln!("SKIP: not root, so this test cannot become another user");
        return;
    }
    let nowhere = "127.0.0.1:1".parse().unwrap();
    let test = "a_program_of_an_unprivileged_user_works";
    let Some(mut unprivileged) = as_user(65534, test, "unprivileged", nowhere) else {
        return;
    };
    let status = unprivileged.command.env_remove("HOME").status().unwrap();
    assert!(status.success(), "{status}");
}

/// A command that runs a role as another user, from a copy of this binary that the user may read. Dropping the value removes the
/// copy.
struct OtherUser {
    command: std::process::Command,
    copy: PathBuf,
}

impl Drop for OtherUser {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.copy);
    }
}

fn as_user(uid: u32, test: &str, role: &str, address: std::net::SocketAddr) -> Option<OtherUser> {
    let own = std::env::current_exe().unwrap();
    let name = format!("rkey-test-{}-{test}-{role}", std::process::id());
    let copy = std::env::temp_dir().join(name);
    // Another process makes the copy: a program that is open for writing cannot be run, and a file that is open here is
    // briefly open in every process that another test starts.
    let mut install = std::process::Command::new("install");
    install.args(["-m", "755"]).arg(own).arg(&copy);
    install.status().ok()?.success().then_some(())?;
    let mut plain = command(test, role, address);
    let mut other = std::process::Command::new(&copy);
    other.args(plain.get_args());
    for (name, value) in plain.get_envs() {
        if let Some(value) = value {
            other.env(name, value);
        }
    }
    plain.env_clear();
    other.uid(uid).gid(uid).current_dir("/");
    let command = other;
    Some(OtherUser { command, copy })
}

/// Another user does not find our listener unless both sides share with all users.
#[test]
fn other_users_find_no_listener_unless_both_sides_share() {
    match role().as_deref() {
        Some("stranger") => {
            let side = Side::open();
            let qp = side.qp();
            let time = Duration::from_millis(100);
            let error = side
                .device
                .connect(common::address(), &[&qp], &[], time)
                .unwrap_err();
            assert!(matches!(error, DeviceError::NotListening { .. }), "{error}");
            assert!(
                list_devices(&Config::default())
                    .unwrap()
                    .iter()
                    .all(|i| i.uid == 65534)
            );
            return;
        }
        Some("guest") => {
            let side = Side::with(with("RKEY_SHARE", "all"));
            let (qp, remote) = side.connect();
            side.run(
                &qp,
                Work::Write {
                    remote: remote.at(0),
                    imm: None,
                },
                &[side.sge(0, 8)],
            );
            // A refusal names a valid key: its owner sees it, and we do not.
            let remote = remote.at(common::WORDS);
            let beyond = Work::Write { remote, imm: None };
            let sges = [side.sge(0, 8)];
            qp.post_send(&SendRequest::new(1, beyond, &sges)).unwrap();
            let done = side.next();
            assert_eq!(done.status, Status::RemoteAccess);
            let told = side.device.denial(done.vendor).unwrap();
            assert_eq!(told.denial.reason, Reason::Withheld);
            let owner = std::os::unix::process::parent_id();
            until("a list with the owner's device", || {
                let all = list_devices(&with("RKEY_SHARE", "all")).unwrap();
                let owner = all.iter().find(|i| i.pid == owner);
                owner.is_some_and(|owner| {
                    assert_eq!((owner.denied, &owner.denials[..]), (1, &[][..]));
                    // The other user does not see where the memory is either.
                    assert_eq!((owner.regions, owner.protection.regions.len()), (1, 0));
                    true
                })
            });
            return;
        }
        _ => {}
    }
    if !is_root() {
        eprintln!("SKIP: not root, so this test cannot become another user");
        return;
    }
    let side = Side::open();
    let listener = side.listen();
    let test = "other_users_find_no_listener_unless_both_sides_share";
    let Some(mut stranger) = as_user(65534, test, "stranger", listener.local_address()) else {
        return;
    };
    assert!(stranger.command.status().unwrap().success());

    let side = Side::with(with("RKEY_SHARE", "all"));
    let listener = side.listen();
    let Some(mut guest) = as_user(65534, test, "guest", listener.local_address()) else {
        return;
    };
    let mut running = guest.command.spawn().unwrap();
    let (_qp, _) = side.accept(&listener);
    assert!(running.wait().unwrap().success());
    let denials = side.device.inspect().unwrap().denials;
    assert_eq!((denials.len(), &*denials[0].reason), (1, "out-of-range"));
}

/// A shared receive queue of another device is refused like a completion queue.
#[test]
fn a_shared_receive_queue_of_another_device_is_refused() {
    let (a, b) = (Side::open(), Side::open());
    let srq = b.device.create_srq(b.domain, 8, 1).unwrap();
    let options = QpOptions {
        srq: Some(srq),
        ..QpOptions::new(a.domain, &a.cq)
    };
    let error = a.device.create_qp(&options).unwrap_err();
    assert!(matches!(error, DeviceError::Unknown { .. }), "{error}");
}
