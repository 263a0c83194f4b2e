//! The reason for a refusal is available as soon as the refusal is visible.

mod common;

use common::Side;
use rkey_base::range::VaRange;
use rkey_core::{Access, LKey, Rules, WindowKind};
use rkey_device::{Config, DeviceError, Qp, QpOptions};
use rkey_engine::{SendRequest, Status, Target, Work};

/// Connected queue pairs of two devices that survive refusals.
fn connect(near: &Side, far: &Side) -> (Qp, Qp) {
    let [near_qp, far_qp] = [near, far].map(|side| {
        let options = QpOptions {
            survive_remote_error: true,
            ..QpOptions::new(side.domain, &side.cq)
        };
        side.device.create_qp(&options).unwrap()
    });
    near_qp
        .connect(far.device.node(), far_qp.address())
        .unwrap();
    far_qp
        .connect(near.device.node(), near_qp.address())
        .unwrap();
    (near_qp, far_qp)
}

/// Requests of one device are refused by another. The thread that polls the completion finds the explanation in its
/// device at once, and so does the owner of the memory.
#[test]
fn a_refusal_is_explained_before_its_completion_is_polled() {
    let (near, far) = (Side::open(), Side::open());
    let (near_qp, _far_qp) = connect(&near, &far);
    for round in 0..3000 {
        // Each access is past the end, at a different address.
        let addr = far.address_of(0) + 8 * common::WORDS as u64 + round;
        let key = engine_key(&far);
        let write = Work::Write {
            remote: Target { addr, key },
            imm: None,
        };
        near_qp
            .post_send(&SendRequest::new(round, write, &[near.sge(0, 8)]))
            .unwrap();
        let done = if round % 3 == 0 {
            near.next_asleep()
        } else {
            near.next()
        };
        let far_reports = far.device.denials();
        let near_report = near.device.denial(done.vendor);
        assert_eq!((done.id, done.status), (round, Status::RemoteAccess));
        let near_report = near_report.expect("a report for the completion");
        assert_eq!(near_report.side, rkey_engine::Side::Initiator);
        assert_eq!(near_report.work_id, Some(round));
        let last = far_reports.last().expect("a report of the owner");
        assert_eq!(
            (last.side, last.denial.addr),
            (rkey_engine::Side::Target, addr)
        );
        assert_eq!(near_report.denial.addr, addr);
        let [theirs, ours] = [&near_report.denial.reason, &last.denial.reason];
        assert_eq!(format!("{theirs:?}"), format!("{ours:?}"));
        // Both sides are in this process, so there is one denial with one number.
        assert_eq!((done.vendor, near_report.id), (last.id, last.id));
        assert_eq!((near_report.echo, last.echo), (true, false));
    }
    let [near, far] = [near, far].map(|side| side.device.inspect().unwrap());
    assert_eq!((far.denied, near.denied), (3000, 0));
    assert!(near.denials.is_empty());
    let ids: std::collections::BTreeSet<_> = far.denials.iter().map(|it| it.id).collect();
    assert_eq!(ids.len(), far.denials.len());
}

/// A program that ends when it has polled the completion of a refused request has already logged the refusal, whichever thread
/// and device of the process does that.
#[test]
fn a_refusal_is_logged_before_its_completion_is_polled() {
    let file = std::env::temp_dir().join(format!("rkey-refusals-{}", std::process::id()));
    std::fs::write(&file, "").unwrap();
    let open = || {
        let mut config = Config::from_env().unwrap();
        config.report = Some(file.clone());
        Side::with(config)
    };
    let (near, far) = (open(), open());
    let (qp, _far_qp) = connect(&near, &far);
    let addr = far.address_of(0) + 8 * common::WORDS as u64;
    let key = engine_key(&far);
    let beyond = Work::Write {
        remote: Target { addr, key },
        imm: None,
    };
    // Fewer than the watcher's file gets at most.
    let mut missing = Vec::new();
    let sges = [near.sge(0, 8)];
    for round in 0..200 {
        let request = SendRequest::new(round, beyond, &sges);
        qp.post_send(&request).unwrap();
        let done = if round % 3 == 0 {
            near.next_asleep()
        } else {
            near.next()
        };
        assert_eq!(done.status, Status::RemoteAccess);
        let log = std::fs::read_to_string(&file).unwrap();
        if log.matches(&format!("(denial {}: ", done.vendor)).count() != 1 {
            missing.push(round);
        }
    }
    let log = std::fs::read_to_string(&file).unwrap();
    let _ = std::fs::remove_file(&file);
    assert!(missing.is_empty(), "{missing:?}");
    assert_eq!(log.matches("(denial ").count(), 200, "{log}");
}

/// A peer that accesses memory past the end of a region, and prints the name of the reason that it gets.
fn asker() {
    let side = Side::open();
    let (qp, remote) = side.connect();
    let remote = remote.at(common::WORDS);
    let beyond = Work::Write { remote, imm: None };
    let sges = [side.sge(0, 8)];
    let request = SendRequest::new(1, beyond, &sges);
    qp.post_send(&request).unwrap();
    let done = side.next();
    assert_eq!(done.status, Status::RemoteAccess);
    let told = side.device.denial(done.vendor).expect("a report");
    assert_eq!((told.denial.addr, told.denial.len), (remote.addr, 8));
    let expected = std::env::var("RKEY_TEST_REASON").unwrap();
    assert_eq!(told.denial.reason.name(), expected);
    // A lease is requested by a separate message.
    let (qp, _) = side.connect();
    let lease = qp.lease(remote.key, remote.addr, 8, true, common::LONG);
    match lease {
        Err(DeviceError::Denied(denial)) => assert_eq!(denial.reason.name(), expected),
        other => panic!("{other:?}"),
    }
}

/// A peer of the same user learns the reason unless the owner's setting forbids it; the owner always has it.
#[test]
fn rkey_explain_determines_who_learns_the_reason_of_a_denial() {
    const TEST: &str = "rkey_explain_determines_who_learns_the_reason_of_a_denial";
    if common::role().is_some() {
        return asker();
    }
    for (explain, told) in [
        ("user", "out-of-range"),
        ("all", "out-of-range"),
        ("none", "withheld"),
    ] {
        let mut config = Config::from_env().unwrap();
        config.set("RKEY_EXPLAIN", explain).unwrap();
        let side = Side::with(config);
        let listener = side.listen();
        let mut command = common::command(TEST, "asker", listener.local_address());
        command.env("RKEY_TEST_REASON", told);
        let peer = common::Peer(command.spawn().unwrap());
        let _qps = [side.accept(&listener), side.accept(&listener)];
        peer.finish();
        let owner = side.device.inspect().unwrap();
        let reasons: Vec<_> = owner.denials.iter().map(|it| &*it.reason).collect();
        assert_eq!(reasons, ["out-of-range"; 2], "{explain}");
    }
}

/// A program with a watcher (`rkey run --explain`) has posted a bind that cannot work.
#[test]
fn a_posted_bind_that_fails_is_written_for_the_watcher() {
    let file = std::env::temp_dir().join(format!("rkey-binds-{}", std::process::id()));
    std::fs::write(&file, "").unwrap();
    let mut config = Config::from_env().unwrap();
    config.report = Some(file.clone());
    let (near, far) = (Side::with(config), Side::open());
    let [qp, far_qp] = [&near, &far].map(|side| {
        let options = QpOptions::new(side.domain, &side.cq);
        side.device.create_qp(&options).unwrap()
    });
    qp.connect(far.device.node(), far_qp.address()).unwrap();
    let window = near.device.create_window(near.domain, WindowKind::Type1);
    let bind = Work::Bind {
        window: window.unwrap().id,
        region: LKey(0x1234_5678),
        range: VaRange::new(near.address_of(0), 8).unwrap(),
        access: Access::REMOTE_READ,
        zero_based: false,
        key: None,
        rules: Rules::empty(),
    };
    qp.post_send(&SendRequest::new(0x77, bind, &[])).unwrap();
    assert_eq!(near.next().status, Status::WindowBind);
    let end = std::time::Instant::now() + common::LONG;
    let written = loop {
        let written = std::fs::read_to_string(&file).unwrap_or_default();
        if written.contains("process ") {
            break written;
        }
        assert!(std::time::Instant::now() < end, "nothing was written");
        std::thread::yield_now();
    };
    let _ = std::fs::remove_file(&file);
    assert!(
        written.contains("bind of a window (work request 0x77")
            && written.contains("names no registered region"),
        "{written}"
    );
}

fn engine_key(side: &Side) -> rkey_core::RKey {
    rkey_core::RKey::Device(side.region.key)
}
