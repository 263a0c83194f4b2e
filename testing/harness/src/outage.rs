//! Failures of a host or a program in the middle of the traffic of programs that were not written for tests.

use crate::hosts::Hosts;
use rustix::process::{Pid, Signal, kill_process};
use std::process::Child;
use std::time::{Duration, Instant};

/// The MTU of the hosts' interfaces: connections have a path MTU of 4096 bytes.
pub const MTU: u32 = 4400;
/// The MTU during [`Outage::LowerMtu`].
const LOWER: u32 = 1500;
/// How long an outage lasts: much longer than a timeout, and shorter than all retries take.
const DURATION: Duration = Duration::from_millis(400);
/// How many datagrams a host gets before its outage.
const DATAGRAMS: u64 = 200;
/// Only a hang takes longer.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(2);

/// A failure of a host or its program that ends soon, so that requests are repeated until they succeed.
#[derive(Clone, Copy, Debug)]
pub enum Outage {
    /// The program is stopped.
    Stopped,
    /// The host's cable is pulled.
    Unplugged,
    /// The host loses its addresses.
    Readdressed,
    /// The MTU of the host is smaller than its packets.
    LowerMtu,
}

impl Outage {
    /// All outages.
    pub const ALL: [Self; 4] = [
        Self::Stopped,
        Self::Unplugged,
        Self::Readdressed,
        Self::LowerMtu,
    ];

    /// Waits for traffic between two programs, one on each host, and lets the one on the host `at` suffer the outage. They must send long
    /// packets over hosts with an MTU of [`MTU`].
    ///
    /// # Panics
    /// A program exits before the outage is over, or there is no traffic.
    pub fn hits(self, hosts: &Hosts, at: usize, mut programs: [&mut Child; 2]) {
        wait_for_traffic(hosts, at, &mut programs);
        match self {
            Self::Stopped => signal(programs[at], Signal::STOP),
            Self::Unplugged => hosts.unplug(at),
            Self::Readdressed => hosts.remove_addresses(at),
            Self::LowerMtu => hosts.set_mtu(at, LOWER),
        }
        std::thread::sleep(DURATION);
        for child in &mut programs {
            let ended = child.try_wait().expect("a child can be awaited");
            assert_eq!(ended, None, "{self:?}: a program has not waited");
        }
        match self {
            Self::Stopped => signal(programs[at], Signal::CONT),
            Self::Unplugged => hosts.plug(at),
            Self::Readdressed => hosts.add_addresses(at),
            Self::LowerMtu => hosts.set_mtu(at, MTU),
        }
    }
}

/// Waits for traffic between two programs, one on each host, and kills the one on the host `at`.
///
/// # Panics
/// A program exits before, or there is no traffic.
pub fn kill_in_traffic(hosts: &Hosts, at: usize, mut programs: [&mut Child; 2]) {
    wait_for_traffic(hosts, at, &mut programs);
    programs[at].kill().expect("a child can be killed");
}

/// Waits until datagrams arrive at a host.
///
/// # Panics
/// A program exits before, or there is no traffic.
pub fn wait_for_traffic(hosts: &Hosts, at: usize, programs: &mut [&mut Child; 2]) {
    let (begun, before) = (Instant::now(), hosts.datagrams(at));
    loop {
        let has_traffic = hosts.datagrams(at) >= before + DATAGRAMS;
        for child in &mut *programs {
            let ended = child.try_wait().expect("a child can be awaited");
            assert_eq!(ended, None, "a program has exited too early");
        }
        if has_traffic {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "no traffic");
        std::thread::sleep(PAUSE);
    }
}

fn signal(program: &Child, signal: Signal) {
    kill_process(Pid::from_child(program), signal).expect("a child can be signalled");
}
