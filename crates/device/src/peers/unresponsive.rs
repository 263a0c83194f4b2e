//! Determines whether a peer that does not respond could have responded.
//!
//! A thread of the peer's process has to respond. If one of its threads is runnable or waits for a page, the peer may have had no
//! chance, although a NIC would have responded. If all of them are asleep, stopped or ended, it had its chance. A process in
//! another namespace, which we cannot see, counts as having had its chance.

use std::fs;
use std::os::fd::AsFd;

use rkey_base::process::stat_field;

use crate::peers::discovery::Discovery;
use crate::peers::links::Links;
use crate::peers::names;
use crate::progress::UnresponsivePeer;
use crate::shared::Shared;

/// Reports to the engine which silent peers could have responded.
pub(crate) fn judge(shared: &Shared, links: &Links, discovery: &Discovery) {
    let silent = shared.driver.requests.take_unresponsive();
    if silent.is_empty() {
        return;
    }
    // Many queue pairs have the same peer.
    let mut last: Option<(Option<u32>, bool)> = None;
    for UnresponsivePeer { qp, link, peer } in silent {
        // The link may have been established since the engine asked.
        let block = names::block_of(peer);
        let link = link.or_else(|| discovery.link_of(links, block));
        let pid = match link {
            Some(link) => links.process_of(link),
            None => discovery.dialled_process(block),
        };
        let had_its_chance = match last {
            Some((of, verdict)) if of == pid => verdict,
            _ => pid.is_none_or(|pid| !waits_for_a_processor(pid)),
        };
        last = Some((pid, had_its_chance));
        // In this order: a process that sleeps has answered before.
        let had_its_chance = had_its_chance && (link.is_some() || !discovery.has_answer(block));
        tracing::debug!(
            ?qp,
            peer,
            ?pid,
            had_its_chance,
            "the peer of a queue pair does not respond"
        );
        shared
            .driver
            .command(|engine| engine.judge_silence(qp, had_its_chance));
    }
}

/// The process that listens on a socket to which we are connected.
pub(crate) fn listener(socket: impl AsFd) -> Option<u32> {
    let who = rustix::net::sockopt::socket_peercred(socket).ok()?;
    u32::try_from(who.pid.as_raw_nonzero().get()).ok()
}

/// The maximum number of threads of a process to check. There is no time limit, because this process may be the one that gets no
/// processor time.
const THREADS_MAX: usize = 256;

/// Whether a thread of a process is runnable (`/proc` does not show whether it is running), or waits for a disk or a page.
pub(super) fn waits_for_a_processor(pid: u32) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    tasks.flatten().take(THREADS_MAX).any(|task| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        matches!(stat_field(&stat, 3), Some("R" | "D"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    struct Process(Child);

    impl Drop for Process {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn shell(line: &str) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", line]).stdin(Stdio::piped());
        Process(command.spawn().unwrap())
    }

    fn becomes(pid: u32, expected: bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while waits_for_a_processor(pid) != expected {
            assert!(Instant::now() < end, "{expected}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_runnable_process_is_distinguished_from_a_sleeping_or_stopped_one() {
        let busy = shell("while :; do :; done");
        becomes(busy.0.id(), true);
        let pid = rustix::process::Pid::from_child(&busy.0);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        becomes(busy.0.id(), false);
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
        becomes(busy.0.id(), true);
        let idle = shell("read line");
        becomes(idle.0.id(), false);
        assert!(!waits_for_a_processor(u32::MAX), "there is no such process");
    }
}
