//! A busy machine: there are many more runnable programs than processors. Peers then respond late, but no request of
//! perftest, which sets its own timeouts, may fail because of that.

use crate::support::{DEVICE, Stage};
use std::process::{Child, Command, Stdio};

/// The number of spinning programs.
const SPINNERS: usize = 10;
/// How many times each program runs: once, because each run takes a long time. `RKEY_TEST_BUSY_RUNS=300` sets another number.
const RUNS: usize = 1;

struct Spinners(Vec<Child>);

impl Drop for Spinners {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn spinners() -> Spinners {
    let spin = |_| {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]);
        command
            .stdin(Stdio::null())
            .spawn()
            .expect("there is a shell")
    };
    Spinners((0..SPINNERS).map(spin).collect())
}

#[test]
fn perftest_completes_on_a_busy_machine() {
    let runs = std::env::var("RKEY_TEST_BUSY_RUNS")
        .map_or(RUNS, |runs| runs.parse().expect("a number of runs"));
    let _spinners = spinners();
    // The programs run concurrently, which makes the machine even busier.
    std::thread::scope(|scope| {
        for program in ["ib_write_bw", "ib_send_bw", "ib_read_bw"] {
            scope.spawn(move || {
                for run in 0..runs {
                    let stage = Stage::new(&format!("busy-{program}"));
                    for text in stage.pair(program, &["-n", "50", "-s", "1024"], |_| {}) {
                        assert!(text.contains(DEVICE), "run {run}: {program}: {text}");
                    }
                }
            });
        }
    });
}
