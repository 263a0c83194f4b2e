//! Why an access was refused, asked as soon as anybody can know that it was.

mod common;

use common::Side;
use rkey_device::QpOptions;
use rkey_device::engine::{self, SendRequest, Status, Target, Work};

/// Two devices; requests of the one are refused by the other. Whoever polls the completion finds the
/// explanation in his device at once, and the owner of the memory has it, too.
#[test]
fn an_explanation_is_there_before_its_completion() {
    let (near, far) = (Side::open(), Side::open());
    let [near_qp, far_qp] = [&near, &far].map(|side| {
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
    for round in 0..3000 {
        // Behind the end, each time elsewhere.
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
        assert_eq!(near_report.side, engine::Side::Initiator);
        assert_eq!(near_report.work_id, Some(round));
        let last = far_reports.last().expect("a report of the owner");
        assert_eq!((last.side, last.denial.addr), (engine::Side::Target, addr));
        assert_eq!(near_report.denial.addr, addr);
        let [theirs, ours] = [&near_report.denial.reason, &last.denial.reason];
        assert_eq!(format!("{theirs:?}"), format!("{ours:?}"));
    }
    assert_eq!(far.device.inspect().unwrap().denied, 3000);
}

fn engine_key(side: &Side) -> rkey_device::core::WireKey {
    rkey_device::core::WireKey::Device(side.region.key)
}
