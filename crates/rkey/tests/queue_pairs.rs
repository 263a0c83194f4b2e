//! The lower-level API: queue pairs and completion queues by hand.

mod common;

use common::{ALL, LONG, device};
use rkey::{
    Access, Completion, CompletionOp, CompletionQueue, Device, Domain, Error, QpState, QueuePair,
    Reason, SendFlags, Status, WindowKind,
};

const SIGNALED: SendFlags = SendFlags::SIGNALED;

struct End {
    domain: Domain,
    queue: CompletionQueue,
    pair: QueuePair,
}

impl End {
    fn new(device: &Device) -> Self {
        let domain = device.domain().unwrap();
        let queue = domain.completion_queue(64).unwrap();
        let pair = domain.queue_pair(&queue).depth(32, 32).build().unwrap();
        Self {
            domain,
            queue,
            pair,
        }
    }

    fn next(&self) -> Completion {
        self.queue.next(LONG).unwrap().expect("no completion")
    }
}

/// Two connected ends; the devices live on in the domains.
fn ends() -> (End, End) {
    let (one, two) = (End::new(&device()), End::new(&device()));
    one.pair.connect(&two.pair.address()).unwrap();
    two.pair.connect(&one.pair.address()).unwrap();
    (one, two)
}

#[test]
fn operations_complete_in_order_with_their_ids() {
    let (one, two) = ends();
    let target = two.domain.register(vec![0u64; 32], ALL).unwrap();
    let key = target.key(..).unwrap();
    let local = one
        .domain
        .register(vec![5u64; 32], Access::empty())
        .unwrap();
    one.pair
        .post_write(
            1,
            &[local.part(0..8).unwrap(), local.part(16..24).unwrap()],
            &key,
            0,
            SIGNALED,
        )
        .unwrap();
    one.pair
        .post_write_inline(2, b"inline", &key, 16, SendFlags::empty())
        .unwrap();
    one.pair
        .post_read(3, &[local.part(32..48).unwrap()], &key, 8, SIGNALED)
        .unwrap();
    one.pair
        .post_fetch_and_add(4, local.part(64..72).unwrap(), &key, 0, 2, SIGNALED)
        .unwrap();
    one.pair
        .post_compare_and_swap(5, local.part(72..80).unwrap(), &key, 0, (7, 1), SIGNALED)
        .unwrap();
    let done: Vec<(u64, Status)> = (0..4)
        .map(|_| one.next())
        .map(|c| (c.id, c.status))
        .collect();
    assert_eq!(done.map_ids(), [1, 3, 4, 5]);
    assert!(done.iter().all(|(_, status)| status.is_success()));
    assert_eq!(local.load_u64(32).unwrap(), 5);
    assert_eq!(&local.read_vec(40..46).unwrap(), b"inline");
    assert_eq!(
        (local.load_u64(64).unwrap(), local.load_u64(72).unwrap()),
        (5, 7)
    );
    assert_eq!(target.load_u64(0).unwrap(), 1);
    assert_eq!(one.pair.state().unwrap(), QpState::Rts);
}

trait Ids {
    fn map_ids(&self) -> Vec<u64>;
}

impl Ids for Vec<(u64, Status)> {
    fn map_ids(&self) -> Vec<u64> {
        self.iter().map(|(id, _)| *id).collect()
    }
}

#[test]
fn sends_fill_receives_and_writes_can_carry_immediate_data() {
    let (one, two) = ends();
    let sink = two.domain.register(vec![0u8; 256], ALL).unwrap();
    let key = sink.key(..).unwrap();
    two.pair
        .post_receive(10, &[sink.part(0..64).unwrap()])
        .unwrap();
    two.pair.post_receive(11, &[]).unwrap();
    one.pair
        .post_send_inline(1, b"a message", SIGNALED)
        .unwrap();
    one.pair
        .post_write_with_immediate(2, &[], (&key, 128), 0xabcd, SIGNALED)
        .unwrap();
    let (first, second) = (two.next(), two.next());
    assert_eq!(
        (first.id, first.opcode, first.bytes),
        (10, CompletionOp::Recv, 9)
    );
    assert_eq!(
        (second.id, second.opcode, second.imm),
        (11, CompletionOp::RecvWriteImm, 0xabcd)
    );
    assert_eq!(sink.read_vec(..9).unwrap(), b"a message");
    assert_eq!((one.next().id, one.next().id), (1, 2));
}

#[test]
fn a_type_2_window_is_invalidated_by_either_side_of_its_queue_pair() {
    let (one, two) = ends();
    let region = two.domain.register(vec![0u8; 4096], ALL).unwrap();
    let window = two.domain.window_of(WindowKind::Type2B).unwrap();
    assert!(matches!(
        window.bind(&region, 0..10, ALL),
        Err(Error::Rights(_))
    ));
    let key = two
        .pair
        .post_bind(1, (&window, 7), &region, 1024..2048, ALL)
        .unwrap();
    assert_eq!(
        two.queue.check(&two.next()).map_err(|e| e.to_string()),
        Ok(())
    );
    one.pair
        .post_write_inline(1, b"through the window", &key, 0, SIGNALED)
        .unwrap();
    assert!(one.next().status.is_success());
    assert_eq!(region.read_vec(1024..1042).unwrap(), b"through the window");

    // The peer's last message invalidates the window.
    let sink = two.domain.register(vec![0u8; 16], Access::empty()).unwrap();
    two.pair.post_receive(2, &[sink.part(..).unwrap()]).unwrap();
    let bye = one
        .domain
        .register(b"bye".to_vec(), Access::empty())
        .unwrap();
    let name = rkey::Key(u32::try_from(key.key()).unwrap());
    one.pair
        .post_send_and_invalidate(2, &[bye.part(..).unwrap()], name, SIGNALED)
        .unwrap();
    assert!(one.next().status.is_success());
    let received = two.next();
    assert!(received.flags.contains(rkey::CompletionFlags::INVALIDATED));
    assert_eq!(received.imm, name.0);

    // The window is rebound under another key, then invalidated by its owner.
    let key = two
        .pair
        .post_bind(3, (&window, 8), &region, 0..10, ALL)
        .unwrap();
    assert!(two.next().status.is_success());
    two.pair
        .post_invalidate(4, rkey::Key(u32::try_from(key.key()).unwrap()))
        .unwrap();
    assert!(two.next().status.is_success());
    one.pair
        .post_write_inline(3, b"late", &key, 0, SIGNALED)
        .unwrap();
    let refused = one.next();
    let why = one.queue.check(&refused).unwrap_err();
    assert!(
        matches!(
            why.denial().map(|d| d.reason),
            Some(Reason::Unbound | Reason::StaleKey { .. })
        ),
        "{why}"
    );
}

#[test]
fn binds_of_type_1_windows_can_be_posted() {
    let (one, two) = ends();
    let region = two.domain.register(vec![0u8; 64], ALL).unwrap();
    let window = two.domain.window().unwrap();
    let key = two
        .pair
        .post_bind(1, (&window, 0), &region, 8..16, Access::REMOTE_WRITE)
        .unwrap();
    assert!(two.next().status.is_success());
    one.pair
        .post_write_inline(1, b"eight by", &key, 0, SIGNALED)
        .unwrap();
    assert!(one.next().status.is_success());
    assert_eq!(region.read_vec(8..16).unwrap(), b"eight by");
}

#[test]
fn a_posted_write_from_a_deregistered_region_is_refused() {
    let (one, two) = ends();
    let target = two.domain.register(vec![0u8; 64], ALL).unwrap();
    let local = one.domain.register(vec![1u8; 64], Access::empty()).unwrap();
    let part = local.part(..).unwrap();
    drop(local.deregister().unwrap());
    one.pair
        .post_write(1, &[part], &target.key(..).unwrap(), 0, SIGNALED)
        .unwrap();
    let completion = one.next();
    assert_eq!(
        (completion.id, completion.status),
        (1, Status::LocalProtection)
    );
    let why = one.queue.check(&completion).unwrap_err();
    assert!(
        matches!(
            why.denial().map(|d| d.reason),
            Some(Reason::StaleKey { .. })
        ),
        "{why}"
    );
    assert_eq!(target.read_vec(..).unwrap(), [0; 64]);
    assert_eq!(one.pair.state().unwrap(), QpState::Error);
}

#[test]
fn unsupported_requests_are_refused_at_once() {
    let one = End::new(&device());
    assert!(
        one.pair
            .post_send_inline(1, b"not connected", SIGNALED)
            .is_err()
    );
    let (one, two) = ends();
    assert!(
        one.pair.post_send_inline(1, &[0; 209], SIGNALED).is_err(),
        "too much inline data"
    );
    let region = one.domain.register(vec![0u8; 64], ALL).unwrap();
    let parts = [region.part(0..8).unwrap(); 5];
    assert!(
        one.pair.post_send(1, &parts, SIGNALED).is_err(),
        "too many buffers"
    );
    let full = (0..33).find_map(|id| one.pair.post_receive(id, &[]).err());
    assert!(full.is_some(), "the receive queue has no limit");
    assert!(
        one.pair.connect(&two.pair.address()).is_err(),
        "a queue pair connected twice"
    );
    one.pair.shut_down().unwrap();
    let flushed = one.next();
    assert_eq!((flushed.id, flushed.status), (0, Status::Flushed));
}

#[test]
fn a_queue_pair_grants_only_the_rights_it_was_built_with() {
    let (owner, visitor) = (device(), device());
    let one = End::new(&visitor);
    let domain = owner.domain().unwrap();
    let queue = domain.completion_queue(8).unwrap();
    let pair = domain
        .queue_pair(&queue)
        .grant(Access::REMOTE_READ)
        .build()
        .unwrap();
    pair.connect(&one.pair.address()).unwrap();
    one.pair.connect(&pair.address()).unwrap();
    let region = domain.register(vec![0u8; 8], ALL).unwrap();
    one.pair
        .post_write_inline(1, b"x", &region.key(..).unwrap(), 0, SIGNALED)
        .unwrap();
    let why = one.queue.check(&one.next()).unwrap_err();
    assert!(why.to_string().contains("queue pair"), "{why}");
}

#[test]
fn queue_pairs_survive_refusals_if_both_ends_opt_in() {
    let build = |device: &Device| {
        let domain = device.domain().unwrap();
        let queue = domain.completion_queue(64).unwrap();
        let pair = domain
            .queue_pair(&queue)
            .survive_refusals()
            .build()
            .unwrap();
        End {
            domain,
            queue,
            pair,
        }
    };
    let (one, two) = (build(&device()), build(&device()));
    one.pair.connect(&two.pair.address()).unwrap();
    two.pair.connect(&one.pair.address()).unwrap();
    let region = two
        .domain
        .register(vec![0u8; 8], Access::REMOTE_READ)
        .unwrap();
    let (good, key) = (
        two.domain.register(vec![0u8; 8], ALL).unwrap(),
        region.key(..).unwrap(),
    );
    one.pair
        .post_write_inline(1, b"refused", &key, 0, SIGNALED)
        .unwrap();
    one.pair
        .post_write_inline(2, b"granted", &good.key(..).unwrap(), 0, SIGNALED)
        .unwrap();
    assert_eq!(one.next().status, Status::RemoteAccess);
    assert_eq!(one.next().status, Status::Success);
    assert_eq!(good.read_vec(..7).unwrap(), b"granted");
}

#[test]
fn a_posted_bind_cannot_bypass_the_rules_of_published_memory() {
    use rkey::{SendRequest, Work};
    let (one, _two) = ends();
    let published = one.domain.publish(vec![1u8; 64]).unwrap();
    let window = one.domain.window().unwrap();
    let refused = one
        .pair
        .post_bind(1, (&window, 0), &published, .., Access::REMOTE_WRITE);
    assert!(matches!(refused, Err(Error::Rights(_))));
    let bind = Work::Bind {
        window: window.id(),
        region: published.local_key(),
        range: rkey_device::base::VaRange::new(published.base(), 64).unwrap(),
        access: Access::REMOTE_WRITE,
        zero_based: false,
        key: None,
        rules: rkey_core::Rules::empty(),
    };
    let request = SendRequest::new(2, bind, &[]);
    assert!(matches!(one.pair.post(&request), Err(Error::Rights(_))));
    assert!(matches!(
        one.pair.post_many(&[request]),
        Err((0, Error::Rights(_)))
    ));
}
