//! The example programs of rdma-core (Debian's `ibverbs-utils`).

use crate::support::{DEVICE, Port, Stage};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;

#[test]
fn ibv_devices_lists_the_device() {
    let text = Stage::new("devices").run("ibv_devices", &[]);
    assert!(text.contains(DEVICE), "{text}");
}

#[test]
fn ibv_devinfo_describes_the_device() {
    let text = Stage::new("devinfo").run("ibv_devinfo", &["-v"]);
    for words in [
        DEVICE,
        "PORT_ACTIVE",
        "atomic_cap:",
        "GID[  0]",
        "max_mr_size:",
        "odp_caps:",
    ] {
        assert!(text.contains(words), "{words} missing in {text}");
    }
}

/// Runs 1000 rounds between two processes; both must count them.
fn ping_pong(service: &str, options: &[&[&str]]) {
    let program = format!("ibv_{service}_pingpong");
    let stage = Stage::new(&program);
    for more in options {
        let words = [&["-g", "0"], *more].concat();
        for text in stage.pair(&program, &words, |_| {}) {
            assert!(
                text.contains("1000 iters in"),
                "{program} {words:?}: {text}"
            );
        }
    }
}

#[test]
fn ibv_rc_pingpong_runs() {
    // The runs poll, sleep on events, and check every byte.
    ping_pong(
        "rc",
        &[
            &[],
            &["-e"],
            &["-c"],
            &["-e", "-c", "-s", "1000000", "-n", "1000"],
        ],
    );
}

#[test]
fn ibv_uc_pingpong_runs() {
    ping_pong("uc", &[&[], &["-e"], &["-c"]]);
}

#[test]
fn ibv_ud_pingpong_runs() {
    ping_pong("ud", &[&[], &["-e"], &["-c"]]);
}

#[test]
fn ibv_srq_pingpong_runs() {
    ping_pong("srq", &[&[], &["-e"], &["-c"]]);
}

#[test]
fn ibv_xsrq_pingpong_runs() {
    let stage = Stage::new("xsrq");
    for more in [&[][..], &["-e"]] {
        let words = [&["-g", "0"], more].concat();
        for text in stage.pair("ibv_xsrq_pingpong", &words, |_| {}) {
            assert!(text.contains("success"), "{text}");
        }
    }
}

/// A process cannot reach a peer of another user, and its log says why.
#[test]
fn the_log_names_the_user_of_an_unreachable_peer() {
    const OTHER_UID: u32 = 65534;
    if !is_root() {
        eprintln!("SKIP: not root, so this test cannot become another user");
        return;
    }
    let stage = Stage::new("other-user");
    stage.copy_libraries();
    let port = Port::new();
    let side = |name: &str, user: u32, more: &[&str]| {
        let mut command = stage.command("ibv_rc_pingpong");
        command.uid(user).args(["-g", "0", "-p", &port.text()]);
        command.args(more);
        stage.start(command, name)
    };
    let mut server = side("server", 0, &[]);
    server.wait_until_it_listens(port.number);
    let mut client = side("client", OTHER_UID, &["127.0.0.1"]);
    let status = client.wait();
    let text = client.text();
    assert!(status.is_some_and(|status| !status.success()), "{text}");
    let whose = "belong to a program that shares its devices only with user 0";
    assert!(
        text.contains(whose) && text.contains("RKEY_SHARE=all"),
        "{text}"
    );
    server.kill();
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}
