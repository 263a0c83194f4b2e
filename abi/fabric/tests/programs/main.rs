//! libfabric's own programs with the provider, which an installed libfabric loads.

mod hosts;
mod place;

use place::Folder;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

thread_local! {
    /// The directory of the test that runs in this thread.
    static FOLDER: Folder = Folder::new();
}

fn folder() -> PathBuf {
    FOLDER.with(|folder| folder.0.clone())
}

/// A program that finds the provider; `None` if it is not installed.
fn program(name: &str) -> Option<Command> {
    if !rkey_harness::process::exists(name) {
        println!("skipped: {name} is not installed");
        return None;
    }
    let mut command = Command::new(name);
    command
        .env("FI_PROVIDER_PATH", folder())
        .env("RKEY_LOG", "warn");
    Some(command)
}

#[test]
fn fi_info_shows_the_three_kinds_of_endpoint() {
    let Some(mut command) = program("fi_info") else {
        return;
    };
    let output = command.args(["-p", "rkey"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    for line in [
        "provider: rkey",
        "type: FI_EP_RDM",
        "type: FI_EP_MSG",
        "type: FI_EP_DGRAM",
    ] {
        assert!(text.contains(line), "{text}");
    }
    assert!(!text.contains("ofi_rxm"), "a layer on top unasked: {text}");
}

/// libfabric's own layer over our connections is available on request.
#[test]
fn libfabric_can_layer_ofi_rxm_over_the_provider() {
    let Some(mut command) = program("fi_info") else {
        return;
    };
    let output = command.args(["-p", "rkey;ofi_rxm"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && text.contains("type: FI_EP_RDM"),
        "{output:?}"
    );
}

/// The provider is not offered to a program that lacks a required mode bit (FI-I16).
///
/// Proves: FI-I16, FI-039
#[test]
fn the_environment_sets_the_required_mode_bits() {
    let Some(mut command) = program("fi_info") else {
        return;
    };
    let output = command
        .args(["-p", "rkey", "-v", "-t", "FI_EP_RDM"])
        .env("FI_RKEY_PROFILE", "verbs")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let modes = "mr_mode: [ FI_MR_LOCAL, FI_MR_VIRT_ADDR, FI_MR_ALLOCATED, FI_MR_PROV_KEY ]";
    assert!(text.contains(modes), "{text}");
    // With a misspelt name, the program must not run without the intended mode.
    for (variable, value) in [
        ("FI_RKEY_PROFILE", "verb"),
        ("FI_RKEY_MR_MODE", "LOCAL,RAVV"),
        ("FI_RKEY_STRICT", "yes"),
    ] {
        let mut command = program("fi_info").unwrap();
        let output = command.args(["-p", "rkey"]).env(variable, value).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success()
                && said.contains(&format!("{variable}={value:?} is not allowed")),
            "{said}"
        );
    }
}

/// A child process, killed on drop.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Guard {
    /// Whether the program succeeds.
    fn wait(&mut self) -> bool {
        self.end().is_some_and(|status| status.success())
    }

    /// Waits until the program exits; `None` if it hangs.
    fn end(&mut self) -> Option<ExitStatus> {
        let until = Instant::now() + Duration::from_secs(120);
        while Instant::now() < until {
            if let Some(status) = self.0.try_wait().unwrap() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }
}

/// A free port for the programs' own connection.
fn port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}

fn pingpong(words: &[&str]) {
    pingpong_under("rkey", words);
}

/// Starts fi_pingpong as server and client. The server takes a moment to listen, and the client tries only once, so starts further
/// clients until one has found the server. If another program has taken the port, starts another server.
fn started(
    words: &[&str],
    configure: &dyn Fn(&mut Command),
    runs: &dyn Fn(&mut Guard) -> bool,
) -> Option<(Guard, Guard)> {
    let until = Instant::now() + Duration::from_secs(60);
    let serve = || {
        let (port, mut server) = (port(), program("fi_pingpong")?);
        configure(server.args(words));
        Some((Guard(server.args(["-B", &port]).spawn().unwrap()), port))
    };
    let (mut server, mut port) = serve()?;
    loop {
        let mut client = program("fi_pingpong")?;
        configure(client.args(words));
        let mut client = Guard(client.args(["-P", &port, "127.0.0.1"]).spawn().unwrap());
        if runs(&mut client) {
            return Some((server, client));
        }
        assert!(Instant::now() < until, "{words:?}: the client failed");
        if server.0.try_wait().unwrap().is_some() {
            (server, port) = serve()?;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Like [`pingpong`], with the registration mode of another provider.
fn pingpong_under(profile: &str, words: &[&str]) {
    let words = [&["-p", "rkey", "-c", "-I", "20"], words].concat();
    let configure = |command: &mut Command| {
        command
            .env("FI_RKEY_PROFILE", profile)
            .stdout(Stdio::null());
    };
    if let Some((mut server, _)) = started(&words, &configure, &Guard::wait) {
        assert!(server.wait(), "{words:?}: the server failed");
    }
}

#[test]
fn fi_pingpong_runs_over_reliable_datagrams() {
    pingpong(&["-e", "rdm"]);
    pingpong(&["-e", "rdm", "-m", "tagged"]);
}

#[test]
fn fi_pingpong_runs_over_connections() {
    pingpong(&["-e", "msg"]);
}

/// libfabric's layer of reliable datagrams over our connections.
#[test]
fn fi_pingpong_runs_over_ofi_rxm() {
    for more in [&["-m", "msg"][..], &["-m", "tagged"]] {
        let mut words = vec!["-p", "rkey;ofi_rxm", "-e", "rdm"];
        words.extend(more);
        pingpong(&words);
        // The layer then registers its own buffers, with its own flag.
        pingpong_under("verbs", &words);
    }
}

/// A connected program that only waits for a message notices that its peer has exited.
#[test]
fn a_waiting_program_exits_when_its_connected_peer_is_killed() {
    let words = ["-p", "rkey", "-e", "msg", "-I", "100000000", "-S", "64"];
    let configure = |command: &mut Command| {
        command.stdout(Stdio::null()).stderr(Stdio::null());
    };
    // A client that finds no server exits at once.
    let runs = |client: &mut Guard| {
        std::thread::sleep(Duration::from_secs(2));
        client.0.try_wait().unwrap().is_none()
    };
    let Some((mut server, mut client)) = started(&words, &configure, &runs) else {
        return;
    };
    server.0.kill().unwrap();
    assert!(!client.wait(), "the client must fail");
    assert!(
        client.0.try_wait().unwrap().is_some(),
        "the client must exit"
    );
}

#[test]
fn fi_pingpong_runs_over_datagrams() {
    pingpong(&["-e", "dgram"]);
}

/// A running C program, built with the installed libfabric headers; `None` without these or a compiler.
fn built(name: &str, source: &str, words: &[&str], environment: &[(&str, &str)]) -> Option<Guard> {
    if !std::path::Path::new("/usr/include/rdma/fi_collective.h").exists() {
        println!("skipped: the headers of libfabric are not installed");
        return None;
    }
    let place = rkey_harness::temporary_folder(&format!("rkey-fi-{name}"));
    let file = place.join("program.c");
    std::fs::write(&file, source).unwrap();
    let built = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(place.join("program"))
        .arg(&file)
        .arg("-lfabric")
        .output();
    let child = match &built {
        Ok(output) if output.status.success() => Command::new(place.join("program"))
            .args(words)
            .env("FI_PROVIDER_PATH", folder())
            .env("FI_PROVIDER", "rkey")
            .env("RKEY_LOG", "warn")
            .envs(environment.iter().copied())
            .spawn()
            .ok(),
        _ => None,
    };
    // The running program no longer needs its file.
    let _ = std::fs::remove_dir_all(&place);
    let Ok(output) = built else {
        println!("skipped: no C compiler is installed");
        return None;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    Some(Guard(child.unwrap_or_else(|| panic!("{said}"))))
}

/// Four processes with a collective group.
fn group_of_four(words: &[&str], environment: &[(&str, &str)]) -> Option<Guard> {
    let source = include_str!("../collectives/group.c");
    built("group", source, words, environment)
}

/// The example program of the README, also under the rules of other hardware.
#[test]
fn the_readme_example_runs_in_several_modes() {
    let source = include_str!("../../examples/write.c");
    for environment in [
        &[][..],
        &[("FI_RKEY_PROFILE", "verbs")],
        &[("FI_RKEY_MR_MODE", "LOCAL,PROV_KEY")],
        // These limits are below what endpoints need, so the provider must raise them.
        &[("RKEY_MAX_INLINE", "256"), ("RKEY_MAX_SGE", "1")],
        &[("RKEY_MAX_QUEUE_DEPTH", "16")],
    ] {
        if let Some(mut example) = built("write", source, &[], environment) {
            assert!(example.wait(), "{environment:?}");
        }
    }
}

/// A program that compares the contents of a request with those of `fi_getinfo`, and checks the names of both
/// sides.
#[test]
fn connection_requests_and_endpoint_names_are_complete() {
    let source = include_str!("../connections/sides.c");
    for environment in [
        &[][..],
        &[("FI_RKEY_PROFILE", "verbs")],
        &[("FI_RKEY_MR_MODE", "RAW,ENDPOINT")],
    ] {
        if let Some(mut sides) = built("sides", source, &[], environment) {
            assert!(sides.wait(), "{environment:?}");
        }
    }
}

/// Two processes with scalable endpoints of four transmit and four receive contexts each.
#[test]
fn two_processes_use_all_pairs_of_contexts() {
    let source = include_str!("../scalable/contexts.c");
    for environment in [
        &[][..],
        &[("FI_RKEY_MR_MODE", "LOCAL,ENDPOINT")],
        &[
            ("FI_RKEY_MR_MODE", "LOCAL,ENDPOINT"),
            ("FI_RKEY_STRICT", "1"),
        ],
    ] {
        if let Some(mut sides) = built("contexts", source, &[], environment) {
            assert!(sides.wait(), "{environment:?}");
        }
    }
}

/// Proves: FI-087, FI-088
#[test]
fn collective_operations_work_between_four_processes() {
    for environment in [&[][..], &[("FI_RKEY_MR_MODE", "COLLECTIVE")]] {
        if let Some(mut group) = group_of_four(&[], environment) {
            assert!(group.wait(), "{environment:?}: a member failed");
        }
    }
}

#[test]
fn killing_a_member_ends_the_operations_of_its_group() {
    if let Some(mut group) = group_of_four(&["killed"], &[]) {
        assert!(group.wait(), "a member failed");
    }
}
