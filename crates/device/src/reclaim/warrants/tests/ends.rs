//! What remains of warrants whose link has ended.

use super::*;

/// The link ends in the middle of a push, so its warrant is revoked during the copy and nothing waits for it. The device checks again
/// later, and forgets it, although neither the region nor the queue pair ends.
#[test]
fn a_warrant_of_a_lost_link_is_forgotten_once_the_copy_has_ended() {
    for _ in 0..ROUNDS {
        let Some(pair) = Pair::with_warrant() else {
            return;
        };
        let shared = pair.target.device.shared();
        let exposure = &shared.reclaim.exposure;
        pair.end_during_a_push(|pair| {
            assert!(exposure.is_warranted());
            let link = pair.target.inbound_link();
            shared.driver.cut_links("a test", &[link]);
            let deadline = Instant::now() + LONG;
            while exposure.is_warranted() {
                assert!(Instant::now() < deadline, "the warrant is never forgotten");
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        assert!(
            shared
                .driver
                .command(|engine| engine.revoke_warrants(WarrantScope::All).is_empty())
        );
    }
}
