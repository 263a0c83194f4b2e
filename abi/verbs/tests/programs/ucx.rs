//! UCX on the device: what it detects, and its own benchmark over its two verbs transports.

use crate::support::{DEVICE, Stage};
use std::process::Command;

/// Restricts UCX to this device.
pub(crate) fn only(transports: &str) -> impl Fn(&mut Command) {
    move |command: &mut Command| {
        command
            .env("UCX_NET_DEVICES", format!("{DEVICE}:1"))
            .env("UCX_TLS", transports)
            .env("UCX_LOG_LEVEL", "info");
    }
}

#[test]
fn ucx_info_lists_both_transports() {
    let text = Stage::new("ucx-info").run("ucx_info", &["-d"]);
    for transport in ["rc_verbs", "ud_verbs"] {
        let found = text.split("Transport: ").any(|part| {
            part.starts_with(transport) && part.contains(&format!("Device: {DEVICE}:1"))
        });
        assert!(found, "{transport} over {DEVICE} missing in {text}");
    }
}

/// Messages, puts, gets and atomics, small and large.
fn perftest(name: &str, transports: &str, shown: &str) {
    let stage = Stage::new(name);
    let tests: [&[&str]; 5] = [
        &["-t", "tag_lat", "-n", "20", "-w", "2"],
        &["-t", "tag_bw", "-s", "100000", "-n", "20", "-w", "2"],
        &["-t", "ucp_put_bw", "-s", "65536", "-n", "20", "-w", "2"],
        &["-t", "ucp_get", "-s", "4096", "-n", "20", "-w", "2"],
        &["-t", "ucp_fadd", "-n", "20", "-w", "2"],
    ];
    for words in tests {
        let texts = stage.pair("ucx_perftest", words, only(transports));
        assert!(texts[1].contains("Final:"), "{words:?}: {texts:?}");
        let way = format!("{shown}/{DEVICE}:1");
        assert!(
            texts[1].contains(&way),
            "{words:?} did not go over {way}: {texts:?}"
        );
    }
}

#[test]
fn ucx_perftest_runs_over_reliable_connections() {
    perftest("ucx-rc", "rc", "rc_verbs");
}

#[test]
fn ucx_perftest_runs_over_datagrams() {
    perftest("ucx-ud", "ud_verbs", "ud_verbs");
}
