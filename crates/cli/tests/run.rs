//! `rkey run`: the program finds the device, and its caller does not notice `rkey`.

mod common;

use common::{program, text};
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn run(words: &[&str]) -> Output {
    program().arg("run").args(words).output().unwrap()
}

#[test]
fn a_verbs_program_finds_the_device() {
    for words in [
        &["ibv_devices"][..],
        &["--", "ibv_devices"],
        &["--explain", "ibv_devices"],
    ] {
        let output = run(words);
        assert!(output.status.success(), "{output:?}");
        assert!(text(&output.stdout).contains("rkey0"), "{output:?}");
    }
}

#[test]
fn libfabric_finds_the_provider() {
    let output = run(&["fi_info", "-p", "rkey"]);
    if output.status.code() == Some(127) {
        println!("skipped: fi_info is not installed");
        return;
    }
    // A program that names no provider gets ours, and no other.
    let all = text(&run(&["fi_info"]).stdout);
    let others = |line: &&str| line.contains("provider: ") && !line.ends_with(": rkey");
    assert!(all.contains("provider: rkey"), "{all}");
    assert_eq!(all.lines().find(others), None, "{all}");
    let text = text(&output.stdout);
    for endpoint in ["FI_EP_RDM", "FI_EP_MSG", "FI_EP_DGRAM"] {
        assert!(text.contains(endpoint), "{output:?}");
    }
}

/// A program gets our libfabric only if the user asks for it.
#[test]
fn rkeys_own_libfabric_is_used_only_on_request() {
    let output = run(&["--own-libfabric", "--", "fi_info", "--version"]);
    if output.status.code() == Some(127) {
        println!("skipped: fi_info is not installed");
        return;
    }
    assert!(
        text(&output.stdout).contains("libfabric: 2.6.0"),
        "{output:?}"
    );
    let offered = text(&run(&["--own-libfabric", "fi_info"]).stdout);
    assert!(offered.contains("provider: rkey"), "{offered}");
    let host = Command::new("fi_info").arg("--version").output().unwrap();
    let version = text(&run(&["fi_info", "--version"]).stdout);
    assert_eq!(version, text(&host.stdout));
}

/// The library for sockets comes after ours, and only if the user asks for it.
#[test]
fn sockets_move_to_rdma_only_on_request() {
    let shows = ["--", "sh", "-c", "echo $LD_PRELOAD"];
    let output = run(&[&["--sockets"][..], &shows].concat());
    assert!(
        !text(&output.stderr).contains("was not found in"),
        "install Debian's rdmacm-utils, as `cargo xtask test` does: its library librdmacm1 has librspreload.so: {output:?}"
    );
    let preload = text(&output.stdout);
    let files: Vec<&str> = preload.trim().split(':').collect();
    let ours = files
        .iter()
        .position(|file| file.ends_with("/libibverbs.so.1"));
    let theirs = files
        .iter()
        .position(|file| file.ends_with("/librspreload.so"));
    assert!(ours.is_some() && ours < theirs, "{preload}");
    assert!(!text(&run(&shows).stdout).contains("librspreload"));
}

#[test]
fn sockets_and_a_key_exclude_each_other() {
    use std::os::unix::fs::OpenOptionsExt;
    let key = std::env::temp_dir().join(format!("rkey-run-key-{}", std::process::id()));
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&key);
    std::io::Write::write_all(&mut file.unwrap(), &[7; 32]).unwrap();
    let run = |words: &[&str]| {
        let mut command = program();
        command.args(words).env("RKEY_WIRE_KEY", &key);
        command.output().unwrap()
    };
    let refused = run(&["run", "--sockets", "--", "true"]);
    let ran = run(&["run", "--", "true"]);
    std::fs::remove_file(&key).unwrap();
    let why = text(&refused.stderr);
    assert!(
        !refused.status.success() && why.contains("without encryption"),
        "{why}"
    );
    assert!(ran.status.success(), "{ran:?}");
}

/// A server with `--sockets` listens over RDMA only, so only a client with `--sockets` reaches it.
#[test]
fn iperf3_runs_over_rdma_with_sockets() {
    const PATIENCE: Duration = Duration::from_secs(60);
    // A port that was free a moment ago.
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port().to_string();
    drop(held);
    let server = ["run", "--sockets", "--", "iperf3", "-s", "-1", "-p", &port];
    let mut server = program()
        .args(server)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let client = ["iperf3", "-c", "127.0.0.1", "-n", "20M", "-p", &port];
    let begun = Instant::now();
    let output = loop {
        // The server may not listen yet.
        let output = run(&[&["--sockets", "--"], &client[..]].concat());
        if output.status.success() || begun.elapsed() > PATIENCE {
            break output;
        }
        let plain = Command::new(client[0]).args(&client[1..]).output();
        assert!(!plain.unwrap().status.success(), "it listens over TCP");
        std::thread::sleep(Duration::from_millis(50));
    };
    if !output.status.success() {
        // Without a client, it would wait forever.
        server.kill().unwrap();
    }
    assert!(text(&output.stdout).contains("iperf Done."), "{output:?}");
    let server = server.wait_with_output().unwrap();
    assert!(server.status.success(), "{server:?}");
    assert!(text(&server.stdout).contains("Accepted connection"));
}

/// The adapters are in the registry that `DAT_OVERRIDE` names, unless the user has set it.
#[test]
fn udapl_finds_the_adapters() {
    let query = &["dtestx", "-q", "-P", "rkey-lo"];
    let output = run(query);
    if output.status.code() == Some(127) {
        println!("skipped: dtestx is not installed");
        return;
    }
    let said = text(&output.stdout);
    assert!(said.contains("DAT_IB_FETCH_AND_ADD"), "{output:?}");
    let mut command = program();
    command
        .env("DAT_OVERRIDE", "/dev/null")
        .arg("run")
        .args(query);
    let said = text(&command.output().unwrap().stdout);
    assert!(!said.contains("DAT_IB_FETCH_AND_ADD"), "{said}");
}

/// Libfabric's own verbs provider also opens the device, and probes how much inline data a queue pair supports. That is logged
/// once.
#[test]
fn probing_for_inline_data_is_logged_once() {
    let refused = |level: &str| {
        let mut command = program();
        let output = command
            .env("RKEY_LOG", level)
            .args(["run", "fi_info"])
            .output();
        let log = text(&output.unwrap().stderr);
        let lines = log
            .lines()
            .filter(|line| line.contains("inline data were requested"));
        let of_call = lines
            .clone()
            .filter(|line| line.contains("ibv_create_qp"))
            .count();
        (of_call, lines.count() - of_call)
    };
    let (told, all) = refused("debug");
    assert_eq!(told, all.min(1));
    assert_eq!(refused("info"), (told, 0));
    if all == 0 {
        println!("skipped: this libfabric has no verbs provider");
    }
}

#[test]
fn arguments_reach_the_program_unchanged() {
    let output = run(&["printf", "%s|", "--explain", "-h", "two words", "--"]);
    assert_eq!(
        text(&output.stdout),
        "--explain|-h|two words|--|",
        "{output:?}"
    );
}

#[test]
fn the_exit_status_is_that_of_the_program() {
    for more in [&[][..], &["--explain"]] {
        let end = |script: &str| run(&[more, &["sh", "-c", script]].concat()).status;
        assert_eq!(end("exit 0").code(), Some(0));
        assert_eq!(end("exit 42").code(), Some(42));
        assert_eq!(end("kill -9 $$").signal(), Some(9));
        assert_eq!(end("kill -15 $$").signal(), Some(15));
    }
    let mut missing = program();
    // A directory in the path that cannot be read would cause a different error.
    missing.env("PATH", "/usr/bin:/bin");
    let missing = missing
        .args(["run", "there-is-no-such-program"])
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(127));
    assert!(
        text(&missing.stderr).contains("there-is-no-such-program"),
        "{missing:?}"
    );
    let mut meant = program();
    meant.env("PATH", "/usr/bin:/bin");
    let meant = meant.args(["run", "ibv_devcies"]).output().unwrap();
    assert_eq!(meant.status.code(), Some(127));
    assert!(
        text(&meant.stderr).contains("did you mean ibv_devices?"),
        "{meant:?}"
    );
    assert_eq!(run(&["/etc/passwd"]).status.code(), Some(126));
}

#[test]
fn signals_reach_the_program() {
    for more in [&[][..], &["--explain"]] {
        let script = "trap 'echo got it; exit 5' TERM; echo ready; while :; do sleep 0.02; done";
        let mut command = program();
        command.arg("run").args(more).args(["sh", "-c", script]);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        assert_eq!(line, "ready\n");
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let started = Instant::now();
        while child.try_wait().unwrap().is_none() && started.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        line.clear();
        let _ = std::io::BufRead::read_line(&mut out, &mut line);
        let _ = child.kill();
        assert_eq!(child.wait().unwrap().code(), Some(5));
        assert_eq!(line, "got it\n");
    }
}

/// Prints a refusal in a child of the program with its advice, or that there was no refusal.
#[test]
fn run_explains_refusals_when_the_program_ends() {
    let quiet = run(&["--explain", "true"]);
    assert!(
        text(&quiet.stderr).contains("no process opened a device"),
        "{quiet:?}"
    );
    let opened = run(&["--explain", "ibv_devinfo"]);
    if opened.status.code() == Some(127) {
        println!("skipped: ibv_devinfo is not installed");
    } else {
        let said = text(&opened.stderr);
        assert!(
            said.contains("no access, registration call or connection was refused"),
            "{opened:?}"
        );
    }
    let refused = run(&["--explain", "rdma_client", "-s", "127.0.0.1", "-p", "1"]);
    if refused.status.code() == Some(127) {
        println!("skipped: rdma_client is not installed");
    } else {
        let said = text(&refused.stderr);
        let words = "a connection to 127.0.0.1:1 was refused: nothing listens";
        assert!(said.contains(words), "{refused:?}");
    }
    // The demo's second process makes ten mistakes on purpose. It uses the device without verbs.
    let rkey = program().get_program().to_owned();
    let output = run(&["--explain", rkey.to_str().unwrap(), "demo", "-q"]);
    let errors = text(&output.stderr);
    assert!(output.status.success(), "{output:?}");
    for words in [
        "refused accesses, calls and connections:",
        "stale key",
        "Ask the owner for the current key",
        "process ",
    ] {
        assert!(errors.contains(words), "{words} is missing in {errors}");
    }
}

/// A name that is almost one of ours is an error before the program starts; any other only causes a message.
#[test]
fn mistyped_variables_are_reported() {
    for (name, meant) in [
        ("RKEY_SHRAE", "RKEY_SHARE"),
        ("FI_RKEY_PROFIL", "FI_RKEY_PROFILE"),
    ] {
        let mut command = program();
        let output = command.env(name, "all").args(["run", "echo", "started"]);
        let output = output.output().unwrap();
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{err}");
        assert!(output.stdout.is_empty(), "{output:?}");
        assert!(
            err.contains(name) && err.contains(&format!("did you mean {meant}?")),
            "{err}"
        );
    }
    let mut command = program();
    let output = command.env("RKEY_BANANA", "1").args(["run", "echo", "on"]);
    let output = output.output().unwrap();
    assert_eq!(text(&output.stdout), "on\n");
    assert_eq!(text(&output.stderr).lines().count(), 1, "{output:?}");
    assert!(text(&output.stderr).contains("unknown variable RKEY_BANANA"));
}

/// A 64-bit program that loads no libraries and exits with 7.
#[cfg(target_arch = "x86_64")]
fn static_program() -> Vec<u8> {
    const CODE: &[u8] = &[0xbf, 7, 0, 0, 0, 0xb8, 60, 0, 0, 0, 0x0f, 0x05];
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    file.extend([2u16, 62].map(u16::to_le_bytes).concat());
    file.extend(1u32.to_le_bytes());
    file.extend([0x40_0078u64, 64, 0].map(u64::to_le_bytes).concat());
    file.extend(0u32.to_le_bytes());
    file.extend([64u16, 56, 1, 0, 0, 0].map(u16::to_le_bytes).concat());
    file.extend([1u32, 5].map(u32::to_le_bytes).concat());
    let length = 120 + CODE.len() as u64;
    let header = [0, 0x40_0000, 0x40_0000, length, length, 0x1000];
    file.extend(header.map(u64::to_le_bytes).concat());
    file.extend(CODE);
    file
}

/// A statically linked program runs, and `rkey` reports that it will not see the device.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_static_program_is_reported() {
    use std::os::unix::fs::PermissionsExt;
    let folder = std::env::temp_dir().join(format!("rkey-static-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let (file, script) = (folder.join("program"), folder.join("script"));
    std::fs::write(&file, static_program()).unwrap();
    std::fs::write(&script, format!("#!{}\n", file.display())).unwrap();
    for path in [&file, &script] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
        let output = run(&[path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        let err = text(&output.stderr);
        assert!(
            err.contains("statically linked") && err.contains(path.to_str().unwrap()),
            "{err}"
        );
        assert_eq!(err.lines().count(), 1, "{err}");
    }
    // The script exists, but its interpreter does not.
    std::fs::remove_file(&file).unwrap();
    let output = run(&[script.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    let err = text(&output.stderr);
    assert!(
        err.contains("interpreter") && err.contains("does not exist"),
        "{err}"
    );
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(text(&run(&["echo", "quiet"]).stderr), "");
}
