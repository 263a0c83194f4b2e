//! `rkey bench` as a user sees it. These tests do not check speed.

mod common;

use common::{program, text};
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// This is long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// A file that is removed when the value is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("rkey-bench-{}-{name}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(&self.0).unwrap()).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn children(of: &Child) -> Vec<String> {
    let tasks = Path::new("/proc").join(of.id().to_string()).join("task");
    let tasks = std::fs::read_dir(tasks).into_iter().flatten().flatten();
    tasks
        .flat_map(|task| {
            let list = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            list.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Every repetition is in the file, with its round, and the older contents of the file are overwritten.
#[test]
fn every_repetition_is_written_to_the_json_file() {
    let (json, svg) = (Scratch::new("all.json"), Scratch::new("all.svg"));
    std::fs::write(&json.0, "x".repeat(1 << 20)).unwrap();
    let output = program()
        .args(["bench", "--quick", "write", "register", "--live", "0"])
        .args(["--modes", "single", "--sizes", "8,4k"])
        .args(["--json".as_ref(), json.0.as_os_str()])
        .args(["--svg".as_ref(), svg.0.as_os_str()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let report = json.json();
    assert_eq!(report["stopped"], false);
    let figures = report["figures"].as_array().unwrap();
    assert_eq!(figures.len(), 5, "{report}");
    for figure in figures {
        let rounds: Vec<u64> = figure["turns"]
            .as_array()
            .unwrap()
            .iter()
            .map(|turn| turn["round"].as_u64().unwrap())
            .collect();
        assert_eq!(rounds, [0, 1, 2], "{figure}");
    }
    let picture = std::fs::read_to_string(&svg.0).unwrap();
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    assert!(picture.contains("register and deregister") && picture.contains(">4 KiB<"));
}

/// Ctrl-C in the middle: the table and the files are written, the target ends, and the exit status reports it.
#[test]
fn an_interrupted_benchmark_shows_its_results_so_far() {
    let json = Scratch::new("interrupted.json");
    let mut child = program()
        .args(["bench", "write", "--seconds", "2", "--reps", "31"])
        .args(["--json".as_ref(), json.0.as_os_str()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("no target was started", || !children(&child).is_empty());
    let target = children(&child).remove(0);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    wait_until("it does not exit", || child.try_wait().unwrap().is_some());
    let output = child.wait_with_output().unwrap();
    let out = text(&output.stdout);
    assert_eq!(
        output.status.code(),
        Some(130),
        "{out}{}",
        text(&output.stderr)
    );
    assert!(out.contains("not measured: interrupted"), "{out}");
    assert_eq!(json.json()["stopped"], true);
    let target = Path::new("/proc").join(target);
    wait_until("the target is still running", || !target.exists());
}

#[test]
fn a_benchmark_that_reaches_its_time_limit_succeeds() {
    let output = program()
        .args([
            "bench",
            "write",
            "--seconds",
            "2",
            "--reps",
            "31",
            "--limit",
            "1",
        ])
        .output()
        .unwrap();
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}{}", text(&output.stderr));
    assert!(out.contains("the time limit (--limit) is reached"), "{out}");
}

/// Files for results are opened before minutes are spent on them.
#[test]
fn result_files_are_opened_before_measuring() {
    for option in ["--json", "--svg"] {
        let output = program()
            .args(["bench", option, "/no/such/folder/file"])
            .output()
            .unwrap();
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{err}");
        assert!(err.contains("/no/such/folder/file"), "{err}");
        assert!(output.stdout.is_empty(), "{output:?}");
    }
}

/// A target that exits in the middle fails the run: the exit status, the step's name and the files show it.
#[test]
fn a_benchmark_whose_target_is_killed_fails() {
    let json = Scratch::new("failed.json");
    let mut child = program()
        .args(["bench", "register", "write", "--live", "0"])
        .args(["--modes", "stream,single", "--sizes", "8"])
        .args(["--seconds", "2", "--reps", "31"])
        .args(["--json".as_ref(), json.0.as_os_str()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("no target was started", || !children(&child).is_empty());
    let target: i32 = children(&child).remove(0).parse().unwrap();
    // The target is connected once it polls, which takes processor time.
    let used = || std::fs::read_to_string(format!("/proc/{target}/schedstat")).unwrap_or_default();
    wait_until("the target does nothing", || {
        let nanoseconds = used().split(' ').next().and_then(|word| word.parse().ok());
        nanoseconds.is_some_and(|ns: u64| ns > 500_000_000)
    });
    kill_process(Pid::from_raw(target).unwrap(), Signal::KILL).unwrap();
    wait_until("it does not exit", || child.try_wait().unwrap().is_some());
    let output = child.wait_with_output().unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{out}{err}");
    assert!(err.contains("rkey: the device failed in: "), "{out}{err}");
    assert!(out.contains("the target process has exited"), "{out}{err}");
    let report = json.json();
    assert_eq!(report["stopped"], false);
    let failed = report["failed"].as_array().unwrap();
    assert_eq!(failed.len(), 1, "{report}");
    assert!(err.contains(failed[0].as_str().unwrap()), "{report} {err}");
}

/// A benchmark started under `nohup` continues when its terminal is closed.
#[test]
fn a_benchmark_under_nohup_continues_after_a_hangup() {
    let plain = program();
    let mut command = Command::new("sh");
    command
        .args(["-c", "trap '' HUP; exec \"$@\"", "sh"])
        .arg(plain.get_program())
        .args(["bench", "write", "--modes", "single", "--sizes", "8"])
        .args(["--seconds", "0.5", "--reps", "3"])
        .env_remove("RKEY_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    wait_until("no target was started", || !children(&child).is_empty());
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    wait_until("it does not exit", || child.try_wait().unwrap().is_some());
    let output = child.wait_with_output().unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    assert!(!out.contains("not measured"), "{out}{err}");
}

/// With a `ucx_perftest` that never exits, starts the benchmark, terminates it with `signal`, and returns its exit code.
fn end_during_perftest(name: &str, signal: Signal) -> Option<i32> {
    let folder = std::env::temp_dir().join(format!("rkey-bench-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (script, list) = (folder.join("ucx_perftest"), folder.join("processes"));
    let lines =
        "#!/bin/sh\n[ \"$1\" = -h ] && exit 0\necho $$ >> \"$0.list\"\nexec /bin/sleep 3600\n"
            .replace("$0.list", list.to_str().unwrap());
    std::fs::write(&script, lines).unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    // Without a compiler there are no other peers.
    let mut child = program()
        .args(["bench", "--peers", "--quick", "direct", "--modes", "stream"])
        .args(["--sizes", "8"])
        .env("PATH", &folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let started = || -> Vec<String> {
        let list = std::fs::read_to_string(&list).unwrap_or_default();
        list.lines().map(str::to_owned).collect()
    };
    wait_until("the two sides are not started", || started().len() == 2);
    kill_process(Pid::from_child(&child), signal).unwrap();
    wait_until("it does not exit", || child.try_wait().unwrap().is_some());
    for process in started() {
        let process = Path::new("/proc").join(process);
        wait_until("a side of ucx_perftest is still running", || {
            !process.exists()
        });
    }
    let output = child.wait_with_output().unwrap();
    let _ = std::fs::remove_dir_all(folder);
    output.status.code()
}

#[test]
fn an_interruption_ends_perftest_at_once() {
    assert_eq!(end_during_perftest("int", Signal::INT), Some(130));
}

#[test]
fn perftest_does_not_outlive_a_benchmark_that_was_killed() {
    assert_eq!(end_during_perftest("kill", Signal::KILL), None);
}
