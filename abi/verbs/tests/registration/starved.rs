//! A live peer gets no processor. A NIC would have responded in its place, so requests wait.

#![allow(unsafe_code)]
// UNSAFETY: changes the scheduling of another process's threads.

use crate::stopped::{PEER, Peer, peer, register};
use crate::world::*;
use ibverbs::sys::consts::*;
use std::process::{Child, Command, Stdio};

/// Processes that occupy a processor.
struct Spinners(Vec<Child>);

impl Drop for Spinners {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A set of the first processor that we may use.
fn one_processor() -> libc::cpu_set_t {
    // SAFETY: all zeros is an empty set; the call writes a set of this size.
    unsafe {
        let (mut all, mut one): (libc::cpu_set_t, libc::cpu_set_t) =
            (std::mem::zeroed(), std::mem::zeroed());
        let len = size_of::<libc::cpu_set_t>();
        assert_eq!(libc::sched_getaffinity(0, len, &raw mut all), 0);
        let first = (0..libc::CPU_SETSIZE as usize).find(|&cpu| libc::CPU_ISSET(cpu, &all));
        libc::CPU_SET(first.expect("we run on one"), &mut one);
        one
    }
}

/// Binds a thread to a processor.
fn bind(thread: u32, set: &libc::cpu_set_t) {
    let len = size_of::<libc::cpu_set_t>();
    // SAFETY: a set of this size.
    let code = unsafe { libc::sched_setaffinity(thread as libc::pid_t, len, set) };
    assert_eq!(code, 0, "{}", std::io::Error::last_os_error());
}

/// Moves a process, at idle priority, to a processor on which `count` other processes spin.
fn starve(pid: u32, count: usize) -> Spinners {
    let set = one_processor();
    let spin = |_| {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]);
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        bind(child.id(), &set);
        child
    };
    let spinners = Spinners((0..count).map(spin).collect());
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let thread: u32 = task.unwrap().file_name().to_str().unwrap().parse().unwrap();
        bind(thread, &set);
        // SAFETY: a parameter of this kind.
        let code = unsafe {
            let parameter: libc::sched_param = std::mem::zeroed();
            libc::sched_setscheduler(
                thread as libc::pid_t,
                libc::SCHED_IDLE,
                &raw const parameter,
            )
        };
        assert_eq!(code, 0, "{}", std::io::Error::last_os_error());
    }
    spinners
}

#[test]
fn requests_do_not_time_out_while_the_peer_gets_no_processor_time() {
    if std::env::var_os(PEER).is_some() {
        return peer();
    }
    let (mut other, mut hear) =
        Peer::start("starved::requests_do_not_time_out_while_the_peer_gets_no_processor_time");
    let [number, addr, rkey] = Peer::offered(&hear("offer"));
    let world = World::new();
    let (memory, region) = register(&world, 0);
    let pair = world.qp(QPT_RC);
    // SAFETY: the objects are live.
    let (own, lkey) = unsafe { ((*pair).qp_num, (*region).lkey) };
    // 8 times 65 microseconds: much less than one time slice of the spinners.
    world.connect_with(pair, QPT_RC, number as u32, 4);
    other.tell(own);
    hear("ready");
    let _spinners = starve(other.pid(), 8);
    for id in 0..5 {
        let mut few = sge(memory.as_ptr() as u64, 8, lkey);
        let mut read = remote(id, WR_RDMA_READ, &mut few, addr, rkey as u32);
        assert_eq!(send(pair, &mut read), (0, false));
        let wc = world.next_within(std::time::Duration::from_secs(55));
        assert_eq!((wc.wr_id, wc.status), (id, WC_SUCCESS), "round {id}");
    }
}
