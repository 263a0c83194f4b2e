//! A target that forks, and then executes another program, which uses the same addresses.

use super::*;
use std::path::PathBuf;

const ADDRESS: &str = "RKEY_TEST_MEMORY";
const READY: &str = "RKEY_TEST_READY";
const LEN: usize = WORDS * 8;

/// Executes this test in the role `after`, while a forked child keeps all descriptors open.
fn execute(side: &Side, test: &str) {
    // SAFETY: the child makes only system calls.
    if unsafe { libc::fork() } == 0 {
        let mut byte = 0u8;
        // SAFETY: reads into our own byte, until standard input ends, and ends the child.
        unsafe {
            while libc::read(0, (&raw mut byte).cast(), 1) > 0 {}
            libc::_exit(0);
        }
    }
    let mut command = common::command(test, "after", common::address());
    command.env(ADDRESS, side.address_of(0).to_string());
    command.stdin(std::process::Stdio::inherit());
    let error = std::os::unix::process::CommandExt::exec(&mut command);
    panic!("{error}");
}

/// The program after that: nothing writes to memory at the addresses of the region.
fn after() {
    let address: usize = std::env::var(ADDRESS).unwrap().parse().unwrap();
    let (page, len) = (address & !4095, LEN + 4096);
    // SAFETY: the kernel refuses addresses that are in use.
    let memory = unsafe {
        libc::mmap(
            std::ptr::without_provenance_mut(page),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE
                | libc::MAP_ANONYMOUS
                | libc::MAP_FIXED_NOREPLACE
                | libc::MAP_POPULATE,
            -1,
            0,
        )
    };
    assert_eq!(memory.addr(), page, "{}", std::io::Error::last_os_error());
    std::fs::write(std::env::var(READY).unwrap(), []).unwrap();
    sleep_in_read();
    // SAFETY: the mapping of this length, which nothing else refers to.
    let bytes = unsafe { std::slice::from_raw_parts(memory.cast::<u8>(), len) };
    assert!(
        bytes.iter().all(|byte| *byte == 0),
        "the new program was written to"
    );
}

/// The PID, and with `ADDR_NO_RANDOMIZE` the addresses, are the same, and the socket stays open. So the initiator notices nothing
/// before its next write.
fn a_program_is_left_alone(test: &str, is_randomized: bool) {
    match role().as_deref() {
        Some("after") => return after(),
        Some(_) => {
            return target(|side, _qp| {
                until("the command", || side.word(ACT) == 1);
                execute(side, test);
            });
        }
        None => {}
    }
    let ready: PathBuf = std::env::temp_dir().join(format!("{test}-{}", std::process::id()));
    let _ = std::fs::remove_file(&ready);
    let side = open();
    let listener = side.listen();
    let mut command = common::command(test, "target", listener.local_address());
    command.env(READY, &ready);
    if !is_randomized {
        // SAFETY: `personality` is a system call that changes only the child.
        unsafe {
            std::os::unix::process::CommandExt::pre_exec(&mut command, || match libc::personality(
                libc::ADDR_NO_RANDOMIZE as libc::c_ulong,
            ) {
                -1 => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            });
        }
    }
    let peer = Peer(command.spawn().unwrap());
    let (qp, remote) = side.accept(&listener);
    if !permits_copies(&peer) {
        return;
    }
    get_warrant(&side, &peer, &qp, remote.at(0));
    side.set(0, 1);
    side.run(&qp, write_to(remote.at(ACT)), &[side.sge(0, 8)]);
    until("the new program", || ready.exists());
    std::fs::remove_file(&ready).unwrap();
    let before = pushed(&side);
    for word in [COUNT, 0] {
        side.set(0, u64::MAX);
        let sges = [side.sge(0, 8)];
        let write = SendRequest::new(5, write_to(remote.at(word)), &sges);
        qp.post_send(&write).unwrap();
        assert!(side.next_within(Duration::from_millis(50)).is_none());
    }
    assert_eq!(pushed(&side), before, "pushed to another program");
    peer.finish();
}

#[test]
fn a_program_that_the_target_executes_is_not_written_to() {
    a_program_is_left_alone(
        "executed::a_program_that_the_target_executes_is_not_written_to",
        true,
    );
}

#[test]
fn a_program_at_the_same_addresses_is_not_written_to() {
    a_program_is_left_alone(
        "executed::a_program_at_the_same_addresses_is_not_written_to",
        false,
    );
}
