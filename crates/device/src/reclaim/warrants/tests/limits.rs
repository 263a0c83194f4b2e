//! How many warrants there are, and how often a peer may ask for one.

use rkey_base::segment::PeerPermit;

use super::super::super::ask_limit::{BURST, REFILL};
use super::*;

/// A note of a peer that has used its warrant just now, or will have.
const IN_USE: u64 = u64::MAX - 1;
/// A note of a peer that has given its warrant back.
const GIVEN_BACK: u64 = u64::MAX;

fn request_for(qp: &Qp, theirs: &Qp, region: &Region, target: &Side) -> WarrantRequest {
    WarrantRequest {
        qpn: theirs.qpn(),
        src_qpn: qp.qpn(),
        key: RKey::Device(region.key),
        addr: target.address_of(0),
        len: 8,
    }
}

/// Leaves a note as the peer does.
fn leave_note(warrant: &OwnWarrant, note: u64) {
    let fd = warrant.fd().try_clone_to_owned().unwrap();
    PeerPermit::map(fd).unwrap().leave_note(note).unwrap();
}

/// Issues a warrant to the peer of a queue pair.
pub(super) fn issue(pair: &Pair, link: LinkId, qp: usize, region: &Region) -> Option<OwnWarrant> {
    let target = &pair.target;
    let request = request_for(&pair.qps[qp], &pair.theirs.lock()[qp], region, target);
    let now = target.driver().schedule.refresh_clock();
    let issued = target
        .driver()
        .command(|engine| engine.issue_warrant(link, &request, now, Box::new(())));
    Some(issued?.0)
}

/// Whether a warrant has been revoked. No peer copies here.
fn is_revoked(warrant: &OwnWarrant) -> bool {
    warrant.is_idle()
}

/// A pair with several queue pairs, and 16 warrants that the peer has not got yet: 4 for each of the first 4 queue pairs.
fn with_16_warrants() -> Option<(Pair, LinkId, Vec<Region>, Vec<OwnWarrant>)> {
    let pair = Pair::with_qps(5)?;
    let target = &pair.target;
    let regions: Vec<Region> = (0..5)
        .map(|_| register(&target.device, target.domain, target.memory))
        .collect();
    pair.qps.iter().for_each(|qp| pair.write(qp));
    let link = target.inbound_link();
    let mut warrants = Vec::new();
    for number in 0..16 {
        warrants.push(issue(&pair, link, number / 4, &regions[number % 4]).unwrap());
        assert_eq!(target.issued() as usize, number + 1);
    }
    Some((pair, link, regions, warrants))
}

/// At the limit a warrant can still be replaced by one of the same queue pair, but no other one is issued while all are in use.
#[test]
fn a_link_has_16_warrants_and_a_queue_pair_4() {
    let Some((pair, link, regions, warrants)) = with_16_warrants() else {
        return;
    };
    let target = &pair.target;
    warrants.iter().for_each(|one| leave_note(one, IN_USE));
    assert!(
        issue(&pair, link, 4, &regions[0]).is_none(),
        "a further one"
    );
    assert_eq!(target.issued(), 16);
    // The same region again, and a fifth region, which replaces the oldest of the queue pair.
    let same = issue(&pair, link, 1, &regions[2]).expect("a replacement");
    leave_note(&same, IN_USE);
    assert!(is_revoked(&warrants[6]) && !is_revoked(&warrants[4]));
    let fifth = issue(&pair, link, 1, &regions[4]).unwrap();
    leave_note(&fifth, IN_USE);
    assert!(is_revoked(&warrants[4]) && !is_revoked(&warrants[5]));
    assert_eq!(target.issued(), 16);
    // A warrant that could not be sent is forgotten, and there is room again.
    target
        .driver()
        .command(|engine| engine.withdraw_warrant(&same));
    assert_eq!(target.issued(), 15);
    let again = issue(&pair, link, 4, &regions[0]).unwrap();
    leave_note(&again, IN_USE);
    assert!(issue(&pair, link, 4, &regions[1]).is_none());
    // The regions that peers have warrants for are known without the engine's lock.
    let exposure = &target.device.shared().reclaim.exposure;
    assert!(regions.iter().all(|it| exposure.may_be_warranted(it.id)));
    let without = register(&target.device, target.domain, target.memory);
    assert!(!exposure.may_be_warranted(without.id));
    for region in regions {
        target.device.deregister(region).unwrap();
        assert!(!exposure.may_be_warranted(region.id));
    }
    assert!(!exposure.is_warranted());
}

#[test]
fn a_warrant_that_was_given_back_makes_room() {
    let Some((pair, link, regions, warrants)) = with_16_warrants() else {
        return;
    };
    for (number, warrant) in warrants.iter().enumerate() {
        leave_note(warrant, if number == 7 { GIVEN_BACK } else { IN_USE });
    }
    let further = issue(&pair, link, 4, &regions[0]).expect("there is room");
    leave_note(&further, IN_USE);
    let revoked: Vec<bool> = warrants.iter().map(is_revoked).collect();
    assert!(revoked[7]);
    assert_eq!(revoked.iter().filter(|it| **it).count(), 1);
    assert!(issue(&pair, link, 4, &regions[1]).is_none());
}

/// All warrants of the link are taken, by queue pairs that do not use theirs. Another queue pair gets one, and pushes.
#[test]
fn unused_warrants_do_not_keep_others_from_pushing() {
    let Some((pair, _, _, warrants)) = with_16_warrants() else {
        return;
    };
    std::thread::sleep(Duration::from_millis(120));
    pair.get_warrant(&pair.qps[4]);
    assert_eq!(pair.target.issued(), 16);
    // Any of them: they were issued at once, and their ages are only accurate to some milliseconds.
    let revoked = warrants.iter().filter(|it| is_revoked(it));
    assert_eq!(revoked.count(), 1);
}

/// The peer is in the middle of a copy when its warrant is replaced. The region waits for the copy all the same.
#[test]
fn a_region_waits_for_a_copy_under_a_replaced_warrant() {
    pushes_end(|pair| {
        let region = *pair.target.region.lock();
        let link = pair.target.inbound_link();
        let new = issue(pair, link, 0, &region).expect("a replacement");
        pair.target
            .driver()
            .command(|engine| engine.withdraw_warrant(&new));
        pair.target.device.deregister(region).unwrap();
    });
}

/// The attack: a peer asks for warrants without end, each time for one that it may have. The owner issues few of them, and goes on to
/// serve the peer's requests.
#[test]
fn a_flood_of_requests_for_warrants_is_dropped() {
    const FLOOD: u64 = 20_000;
    let Some(pair) = Pair::connect() else { return };
    let target = &pair.target;
    pair.write(&pair.qps[0]);
    let link = target.inbound_link();
    let region = *target.region.lock();
    let (qpn, src_qpn) = (pair.theirs.lock()[0].qpn(), pair.qps[0].qpn());
    let ask = encode(&Message::AskWarrant(WarrantAsk {
        qpn,
        src_qpn,
        requested: false,
        key: region.key.0.into(),
        addr: target.address_of(0),
        len: 8,
    }));
    let line = {
        let engine = pair.initiator.driver().lock();
        let mut links = engine.links();
        let (_, link) = links
            .find(|(_, link)| link.role() == LinkRole::Requester && link.peer().is_some())
            .unwrap();
        link.peer().unwrap().line
    };
    let begin = Instant::now();
    let mut sent = 0;
    while sent < FLOOD {
        assert!(begin.elapsed() < LONG, "{sent} sent");
        match line.send_control(&ask, &[]) {
            Ok(()) => sent += 1,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::yield_now()
            }
            Err(error) => panic!("{error}"),
        }
    }
    // A request that is sent afterwards is served. The messages before have been received by then, or are in the socket.
    pair.write(&pair.qps[0]);
    std::thread::sleep(REFILL * 2);
    // Warrants have consecutive numbers.
    let last = issue(&pair, link, 0, &region)
        .expect("a direct one")
        .number();
    let most = u64::from(BURST) + begin.elapsed().as_nanos() as u64 / REFILL.as_nanos() as u64 + 2;
    assert!(
        (u64::from(BURST)..=most).contains(&last),
        "{last} issued, at most {most} expected"
    );
    // After a while, the peer gets one again.
    pair.get_warrant(&pair.qps[0]);
}
