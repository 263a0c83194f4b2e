//! The `rkey` command as users see it: its output and exit codes.

mod common;

use common::{program, text};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The lists name a device by its process, so only one test at a time may have a device in this process.
static DEVICE_OF_THIS_PROCESS: Mutex<()> = Mutex::new(());

fn only_device() -> MutexGuard<'static, ()> {
    let guard = DEVICE_OF_THIS_PROCESS.lock();
    guard.unwrap_or_else(PoisonError::into_inner)
}

fn run(words: &[&str]) -> Output {
    program().args(words).output().unwrap()
}

/// Runs the command until `is_so` accepts its output: lists omit a device whose process gets no processor time for a second.
fn run_until(words: &[&str], is_so: impl Fn(&Output) -> bool) -> Output {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let output = run(words);
        if is_so(&output) {
            return output;
        }
        assert!(Instant::now() < deadline, "{words:?}: {output:?}");
        // Pause: each run wakes every device on the machine, including those of tests that measure idle devices.
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn the_demo_succeeds_and_explains_every_mistake() {
    let output = run(&["demo"]);
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}{}", text(&output.stderr));
    assert!(!out.contains("FAILED") && !out.contains('\u{1b}'), "{out}");
    assert_eq!(
        out.lines()
            .filter(|line| line.starts_with("[ok]     mistake"))
            .count(),
        10,
        "{out}"
    );
    // Only the explanations distinguish these mistakes.
    for words in [
        "unknown key",
        "stale key",
        "lkey",
        "the last 1 B is past the end",
        "remote atomic",
        "zero-based",
    ] {
        assert!(out.contains(words), "{words} is missing in {out}");
    }
    assert!(text(&output.stderr).is_empty(), "{}", text(&output.stderr));
}

#[test]
fn the_demo_prints_json() {
    let output = run(&["demo", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = rows.as_array().unwrap();
    assert!(
        rows.len() >= 20 && rows.iter().all(|row| row["green"] == true),
        "{rows:?}"
    );
}

#[test]
fn the_demo_fails_when_its_owner_process_reaches_a_limit() {
    // A limit that the owner hits turns rows red and fails the command.
    let output = program()
        .args(["demo", "-q"])
        .env("RKEY_MAX_REGIONS", "4")
        .output()
        .unwrap();
    assert!(!output.status.success(), "{}", text(&output.stdout));
    let all = text(&output.stdout) + &text(&output.stderr);
    assert!(all.contains("RKEY_MAX_REGIONS"), "{all}");
}

#[test]
fn info_shows_features_and_reasons() {
    let output = run(&["info"]);
    let out = text(&output.stdout);
    assert!(output.status.success());
    for words in [
        "direct copy between processes",
        "RKEY_MAX_REGIONS",
        "RKEY_SHARE",
        "memfd",
        "Registration cache: at most 1024 entries of any total size; monitor: none",
        "FI_MR_CACHE_MONITOR",
        "memhooks",
    ] {
        assert!(out.contains(words), "{words} is missing in {out}");
    }
    let output = program()
        .args(["info", "--json"])
        .env("RKEY_TICK_MS", "20")
        .env("FI_MR_CACHE_MONITOR", "disabled")
        .env("FI_MR_CACHE_MAX_SIZE", "lots")
        .output()
        .unwrap();
    let info: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let tick = info["settings"]
        .as_array()
        .unwrap()
        .iter()
        .find(|s| s["variable"] == "RKEY_TICK_MS")
        .unwrap();
    assert_eq!(
        (tick["value"].as_str(), tick["set"].as_bool()),
        (Some("20"), Some(true))
    );
    assert!(info["copy_paths"]["paths"].as_array().unwrap().len() >= 3);
    let cache = &info["registration_cache"];
    assert_eq!(cache["monitor"], "disabled");
    assert_eq!(cache["provider"], "disabled");
    assert_eq!(
        cache["ignored"][0],
        "FI_MR_CACHE_MAX_SIZE=lots has no effect: give a number of bytes"
    );
    for monitor in cache["monitors"].as_array().unwrap() {
        assert!(
            monitor["works"].is_boolean() && monitor["why"] != "",
            "{monitor}"
        );
    }
}

#[test]
fn ls_shows_registration_caches() {
    let _only_device = only_device();
    let device = rkey::Device::open().unwrap();
    let bytes = vec![0u8; 3000];
    device.domain().unwrap().scope(|scope| {
        for part in bytes.chunks(1000).chain(bytes.chunks(1000)) {
            drop(scope.cached(part).unwrap());
        }
        let pid = std::process::id().to_string();
        let shown = |output: &Output| text(&output.stdout).contains("Registration caches: 1");
        let output = run_until(&["ls", &pid], shown);
        let out = text(&output.stdout);
        let cells = |line: &str| -> Vec<String> {
            let cells = line.split(['│', '┆']).skip(2);
            cells.map(|cell| cell.trim().to_owned()).collect()
        };
        let expected = ["3", "3000 B", "3", "3", "0", "0", "0", "none", ""];
        assert!(out.lines().any(|line| cells(line) == expected), "{out}");
    });
}

fn succeeds(output: &Output) -> bool {
    output.status.success()
}

/// Checks what `rkey ls PID` shows of the device of [`ls_and_explain_show_live_processes`].
fn ls_shows_the_device_of(pid: &str) {
    let detail = text(&run_until(&["ls", pid], succeeds).stdout);
    for words in [
        "Regions",
        "Windows: 1",
        "12.1 KiB",
        "remote read",
        "type 1",
        "RC",
    ] {
        assert!(detail.contains(words), "{words} is missing in {detail}");
    }
    // The counts by domain equal the lists.
    let mut domain = detail
        .lines()
        .skip_while(|line| !line.starts_with("Domains: 1"));
    let row: Vec<&str> = domain
        .nth(4)
        .unwrap()
        .split(['│', '┆'])
        .map(str::trim)
        .collect();
    assert_eq!(row[3..6], ["1", "4", "0"], "{detail}");
    assert!(
        detail.contains("Queue pairs: 4\n")
            && detail.contains("Links (to 0 peers, and to itself): 1\n"),
        "{detail}"
    );
}

/// The denial that `rkey explain` lists for a process with one.
fn the_one_denial_of(pid: &str) -> serde_json::Value {
    let output = run_until(&["explain", "--json", pid], succeeds);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["schema"], 1, "{json}");
    // Both sides are in this process, so the denial is listed once.
    let json = &json["processes"][0];
    assert_eq!(json["pid"].to_string(), pid, "{json}");
    assert_eq!(json["denied"], 1, "{json}");
    let denial = &json["denials"][0];
    assert_eq!(json["denials"].as_array().unwrap().len(), 1, "{json}");
    for (field, value) in [
        ("operation", "RDMA write"),
        ("side", "target"),
        ("reason", "missing-right"),
        ("needed", "remote write"),
        ("granted", "remote read"),
    ] {
        assert_eq!(denial[field], value, "{denial}");
    }
    assert_eq!(denial["length"], 7, "{denial}");
    assert!(denial["address"].as_str().unwrap().starts_with("0x"));
    for owner in [&denial["owner"], &denial["peer"]["pid"]] {
        assert_eq!(owner.to_string(), pid, "{denial}");
    }
    denial.clone()
}

#[test]
fn ls_and_explain_show_live_processes() {
    let _only_device = only_device();
    // This process opens a device with a region, a window and a connection to itself, over which an access is refused.
    let device = rkey::Device::open().unwrap();
    let domain = device.domain().unwrap();
    let region = domain
        .register(vec![0u8; 12_345], rkey::Access::REMOTE_READ)
        .unwrap();
    let part = region.key(0..100).unwrap();
    let listener = device.listen("127.0.0.1:0").unwrap();
    let (address, peer) = (listener.address(), device.clone());
    let connecting = std::thread::spawn(move || peer.connect(address).unwrap());
    let inner = listener.accept_timeout(Duration::from_secs(60)).unwrap();
    let outer = connecting.join().unwrap();
    outer
        .write_bytes(b"refused", &part, 0)
        .unwrap()
        .wait()
        .unwrap_err();

    let pid = std::process::id().to_string();
    let mine = |output: &Output| -> serde_json::Value {
        let all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        all.as_array()
            .unwrap()
            .iter()
            .find(|d| d["pid"].as_u64() == pid.parse().ok())
            .cloned()
            .unwrap_or_default()
    };
    let told_of_mine = |words: &[&str]| mine(&run_until(words, |output| !mine(output).is_null()));
    let listed = told_of_mine(&["ls", "--json"]);
    assert!(listed["regions"].as_u64().unwrap() >= 1, "{listed}");
    assert_eq!(listed["windows"], 1);
    assert_eq!(listed["qps"].as_array().unwrap().len(), 4);
    let has_pid = |output: &Output| text(&output.stdout).contains(&pid);
    let table = text(&run_until(&["ls"], has_pid).stdout);
    assert!(
        table.contains("queue pairs") && table.contains("peers"),
        "{table}"
    );
    ls_shows_the_device_of(&pid);
    let why = text(&run_until(&["explain", &pid], succeeds).stdout);
    assert!(
        why.contains("remote write") && why.contains("denied") && why.contains("as well."),
        "{why}"
    );
    let denial = the_one_denial_of(&pid);
    // The number is also in the completion and in the text.
    let id = denial["id"].as_u64().unwrap();
    let error = device.denials().pop().unwrap();
    assert_eq!(u64::from(error.id), id);
    assert!(why.contains(&format!("  {id}: RDMA write of 7 B")), "{why}");
    drop((inner, outer));
}

/// `rkey info | head` ends like any other program, without a panic.
#[test]
fn explain_ends_silently_when_its_output_pipe_is_closed() {
    use std::os::unix::process::ExitStatusExt;
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = program();
    command.args(["explain", "--reasons"]).stdout(writer);
    let output = command.stderr(Stdio::piped()).spawn().unwrap();
    drop(command);
    let output = output.wait_with_output().unwrap();
    assert_eq!(
        output.status.signal(),
        Some(rustix::process::Signal::PIPE.as_raw())
    );
    assert_eq!(text(&output.stderr), "");
}

/// A listener, a pending request and a refusal, in a process that uses the Rust API.
#[test]
fn ls_and_explain_show_the_connection_manager() {
    let _only_device = only_device();
    let device = rkey::Device::open().unwrap();
    let listener = device.listen_cm("127.0.0.1:0").unwrap();
    let address = listener.address();
    let error = device.connect_cm("127.0.0.1:1", b"").unwrap_err();
    assert!(error.to_string().contains("nothing listens"), "{error}");
    let pid = std::process::id().to_string();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| device.connect_cm(address, b""));
        // Wait until the listener has the request.
        let waits = |output: &Output| text(&output.stdout).contains("1 of at most 128");
        let json = text(&run_until(&["ls", "--json", &pid], waits).stdout);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let out = text(
            &run_until(&["ls", &pid], |it| {
                text(&it.stdout).contains("3 identifiers")
            })
            .stdout,
        );
        for words in [
            "3 identifiers",
            "listening",
            "connecting",
            &address.to_string(),
        ] {
            assert!(out.contains(words), "{words} is missing in {out}");
        }
        let manager = &json[0]["connection_managers"][0];
        assert_eq!(manager["api"], "Rust", "{json}");
        assert_eq!(manager["ids"][0]["backlog"], serde_json::json!([1, 128]));
        assert_eq!(manager["ids"][2]["peer_pid"].to_string(), pid, "{manager}");
        drop(listener.next_request().unwrap());
        client.join().unwrap().unwrap_err();
    });
    let out = text(
        &run_until(&["explain", &pid], |it| {
            text(&it.stdout).contains("refused: 2")
        })
        .stdout,
    );
    for words in [
        "connections refused: 2",
        "a connection to 127.0.0.1:1 was refused: nothing listens",
        &format!("a connection to {address} was refused: the program rejected the connection"),
    ] {
        assert!(out.contains(words), "{words} is missing in {out}");
    }
    let json = text(
        &run_until(&["explain", "--json", &pid], |it| {
            text(&it.stdout).contains("nothing-listens")
        })
        .stdout,
    );
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let process = &json["processes"][0];
    assert_eq!(
        (&json["schema"], &process["connections_refused"]),
        (&1.into(), &2.into())
    );
    assert_eq!(process["refusals"][0]["reason"], "nothing-listens");
    assert_eq!(process["refusals"][0]["side"], "asked");
}

#[test]
fn explain_describes_every_reason() {
    let output = run(&["explain", "--reasons"]);
    assert!(output.status.success());
    let out = text(&output.stdout);
    for words in [
        "stale",
        "lkey",
        "domain",
        "not enabled",
        "not bound",
        "the last 8 B are past the end",
        "zero-based",
        "connection refused: the listener's backlog of 8 is full",
        "belongs to user 1001",
        "57 B of private data do not fit: the maximum is 56 B",
    ] {
        assert!(out.contains(words), "{words} is missing in {out}");
    }
}

#[test]
fn invalid_arguments_and_settings_are_errors_with_a_hint() {
    for (words, hint) in [
        (&["dmo"][..], "demo"),
        (&["demo", "--bogus"], "--help"),
        (&["ls", "not-a-number"], "invalid"),
        (&[], "Usage"),
    ] {
        let output = run(words);
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {err}");
        assert!(err.contains(hint), "{words:?}: {err}");
    }
    let output = run(&["ls", "4194304"]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        err.contains("has no device open") && err.contains("hint: "),
        "{err}"
    );

    let output = program()
        .arg("info")
        .env("RKEY_SHARE", "everyone")
        .output()
        .unwrap();
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        err.contains("RKEY_SHARE") && err.contains("user or all") && err.contains("hint: "),
        "{err}"
    );
    assert_eq!(err.matches("RKEY_SHARE").count(), 1, "reported once: {err}");
}

#[test]
fn rkey_log_enables_logging() {
    let output = program()
        .args(["demo", "-q"])
        .env("RKEY_LOG", "warn")
        .output()
        .unwrap();
    let err = text(&output.stderr);
    assert!(output.status.success());
    assert!(
        err.contains("WARN") && err.contains("denied") && !err.contains('\u{1b}'),
        "{err}"
    );
}

/// An invalid value is reported before the command does anything; an empty one counts as unset.
#[test]
fn invalid_values_of_variables_are_reported() {
    for (variable, bad) in [
        ("RKEY_LOG", "banana"),
        ("RKEY_LOG", "-1"),
        ("RKEY_LOCAL_ROUTES", "banana"),
        ("RKEY_TIMEOUT", "banana"),
        ("FI_RKEY_MR_MODE", "bar"),
        ("FI_RKEY_PROFILE", "foo"),
        ("FI_RKEY_STRICT", "yes"),
    ] {
        for words in [&["info"][..], &["ls"], &["run", "echo", "started"]] {
            let output = program().args(words).env(variable, bad).output().unwrap();
            let err = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{err}");
            assert!(output.stdout.is_empty(), "{output:?}");
            let told = format!("{variable}={bad:?} is not allowed: it must be ");
            assert_eq!(err.matches(&told).count(), 1, "{err}");
        }
        let output = program().arg("info").env(variable, "").output().unwrap();
        let out = text(&output.stdout);
        assert!(output.status.success(), "{variable}: {output:?}");
        assert!(!out.contains(&format!("{variable} *")), "{out}");
    }
}

#[test]
fn the_demo_leaves_no_process_behind_when_it_is_killed() {
    let mut child = program()
        .args(["demo"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(30));
    child.kill().unwrap();
    child.wait().unwrap();
    // The owner notices that the visitor has ended, and exits.
    let needle = format!("{}", child.id());
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let left = text(&run(&["ls", "--json"]).stdout);
        let devices: serde_json::Value = serde_json::from_str(&left).unwrap();
        let orphan = devices.as_array().unwrap().iter().any(|device| {
            let command = device["command"].as_str().unwrap_or_default();
            command.contains("--owner") && parent_is_gone(&device["pid"].to_string())
        });
        if !orphan {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "an owner is still running after {needle}: {left}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Whether the parent of a process has ended, so that init has adopted it.
fn parent_is_gone(pid: &str) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else {
        return false;
    };
    status.lines().any(|line| line.trim_end() == "PPid:\t1")
}

/// Set in a process that connects to the test, which then kills it.
const PEER_OF: &str = "RKEY_TEST_PEER_OF";

/// This is not a separate test but the peer of the test below.
#[test]
fn peer_that_is_killed() {
    if let Ok(address) = std::env::var(PEER_OF) {
        let device = rkey::Device::open().unwrap();
        let _peer = device.connect(address.as_str()).unwrap();
        let _ = std::io::stdin().read_line(&mut String::new());
    }
}

/// The process and program of a peer that has exited are named next to its queue pair.
#[test]
fn ls_names_a_peer_that_has_exited() {
    let _only_device = only_device();
    let device = rkey::Device::open().unwrap();
    let listener = device.listen("127.0.0.1:0").unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "peer_that_is_killed", "--quiet"])
        .env(PEER_OF, listener.address().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let _peer = listener.accept_timeout(Duration::from_secs(60)).unwrap();
    let pid = child.id();
    child.kill().unwrap();
    child.wait().unwrap();
    let own = std::process::id().to_string();
    let wanted = format!("PID {pid} (");
    let output = run_until(&["ls", &own], |output| {
        let out = text(&output.stdout);
        out.contains(&wanted) && out.contains("which has exited")
    });
    assert!(output.status.success());
}

/// Answers at the name of a device like version 2 of the link protocol, with a refusal.
fn old_device() {
    use rustix::net::{
        AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind,
        listen, recv, send, socket_with,
    };
    let uid = rustix::process::geteuid().as_raw();
    let kind = SocketType::SEQPACKET;
    let listener = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    let bound = (0x7100u16..0x7200).any(|block| {
        let name = format!("rkey/1/{uid}/qp/{block:04x}");
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        bind(&listener, &name).is_ok()
    });
    assert!(bound);
    listen(&listener, 16).unwrap();
    std::thread::spawn(move || {
        while let Ok(client) = accept(&listener) {
            let _ = recv(&client, &mut [0; 8192], RecvFlags::empty());
            let _ = send(&client, b"rkey\x02\x00\x03\x00no", SendFlags::NOSIGNAL);
            let _ = recv(&client, &mut [0; 8192], RecvFlags::empty());
        }
    });
}

/// `ls` and `explain` name a process whose device runs another version, instead of leaving it out.
#[test]
fn ls_and_explain_name_devices_of_other_versions() {
    let _only_device = only_device();
    old_device();
    let pid = std::process::id().to_string();
    let is_named = |output: &Output| {
        let text = text(&output.stderr);
        text.contains("it uses link protocol 2, and this process uses 4")
            && text.contains(&format!("PID {pid} ("))
    };
    for words in [&["ls"][..], &["explain"], &["ls", "--json"]] {
        assert!(run_until(words, is_named).status.success(), "{words:?}");
    }
    for words in [["ls", &pid], ["explain", &pid]] {
        assert!(!run_until(&words, is_named).status.success(), "{words:?}");
    }
}
