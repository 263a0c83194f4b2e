//! C programs that are linked with the system's libfabric, and libfabric's own programs, run on this library unmodified.

use rkey_kit::delivery::{FABRIC, OWN_LIBFABRIC};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A directory with the library and its provider, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let own = std::env::current_exe().expect("a test has a path");
        let beside = own.parent().expect("the file has a directory");
        let folder = rkey_harness::temporary_folder(&format!("rkey-libfabric-{test}"));
        for front_end in [FABRIC, OWN_LIBFABRIC] {
            let library = front_end
                .find(beside)
                .expect("cargo builds the libraries for the tests");
            front_end
                .put_into(&folder, &library)
                .expect("links can be made");
        }
        Self(folder)
    }

    /// Compiles a program and links it with the system's libfabric; `None` without the headers.
    fn compile(&self, name: &str, source: &str) -> Option<PathBuf> {
        if !Path::new("/usr/include/rdma/fi_ext.h").exists() {
            println!("skipped: the headers of libfabric are not installed");
            return None;
        }
        for (file, text) in [
            ("check.h", include_str!("programs/check.h")),
            ("pair.h", include_str!("programs/pair.h")),
            ("program.c", source),
        ] {
            std::fs::write(self.0.join(file), text).expect("a file can be written");
        }
        let program = self.0.join(name);
        // Not with the directory, so the compiler does not find our library there.
        let mut compiler = Command::new("gcc");
        compiler
            .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
            .args([&program, &self.0.join("program.c")])
            .arg("-lfabric");
        let output = compiler.output().expect("`cargo xtask test` installs gcc");
        assert!(output.status.success(), "{output:?}");
        Some(program)
    }

    /// A program on our library, which ends if it hangs.
    fn on_ours(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("timeout");
        command
            .arg("300")
            .arg(program)
            .env("LD_LIBRARY_PATH", &self.0)
            .env_remove("FI_PROVIDER");
        command
    }

    /// Compiles and runs a program that prints "done" at the end; `None` if that is not possible here.
    fn run(
        &self,
        name: &str,
        source: &str,
        words: &[&str],
        environment: &[(&str, &str)],
    ) -> Option<Output> {
        let program = self.compile(name, source)?;
        let mut command = self.on_ours(program);
        let output = command
            .args(words)
            .envs(environment.iter().copied())
            .output();
        let output = output.expect("it can be started");
        assert!(
            output.status.success() && output.stdout.ends_with(b"done\n"),
            "{words:?} {environment:?}: {output:?}"
        );
        Some(output)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_program_for_libfabric_sends_messages() {
    let folder = Folder::new("message");
    let source = include_str!("programs/message.c");
    let environment = [("FI_LOG_LEVEL", "info"), ("FI_PROVIDER", "rkey,ofi_rxm")];
    let Some(output) = folder.run("message", source, &[], &environment) else {
        return;
    };
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = ":mine:mr:messages():12<info> 1 two 3 4.5 6 7\n";
    assert!(log.contains(line), "{log}");
    let without = folder
        .on_ours(folder.0.join("message"))
        .env("FI_PROVIDER", "tcp")
        .output()
        .expect("it can be started");
    let log = String::from_utf8_lossy(&without.stderr).into_owned();
    assert!(log.contains("FI_PROVIDER=tcp excludes"), "{log}");
}

#[test]
fn without_the_provider_the_library_says_what_is_missing() {
    let folder = Folder::new("alone");
    let Some(program) = folder.compile("alone", include_str!("programs/message.c")) else {
        return;
    };
    let alone = folder.0.join("alone-folder");
    std::fs::create_dir(&alone).expect("a directory can be made");
    // A copy: the library would find its provider beside the file that a link names.
    let ours = folder.0.join(OWN_LIBFABRIC.file);
    std::fs::copy(ours, alone.join(OWN_LIBFABRIC.file)).expect("a file can be copied");
    let mut command = folder.on_ours(program);
    let output = command.env("LD_LIBRARY_PATH", &alone).output();
    let output = output.expect("it can be started");
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    let advice = "neither librkey-fi.so nor librkey_all.so is in";
    assert!(
        log.contains(advice) && log.contains("into the directory of libfabric.so.1"),
        "{log}"
    );
    assert!(!output.status.success());
}

#[test]
fn shorter_structures_of_older_programs_are_not_read_beyond_their_end() {
    let folder = Folder::new("versions");
    folder.run("versions", include_str!("programs/versions.c"), &[], &[]);
}

/// The cache asks the program's monitor to watch cached memory, and the monitor's notifications invalidate registrations.
///
/// Proves: FI-247, FI-248, FI-I44, FI-I45
/// Proves partly: FI-231 (regions without remote rights in the libfabric provider)
#[test]
fn an_imported_monitor_can_invalidate_cached_registrations() {
    let folder = Folder::new("cache");
    let source = include_str!("programs/mr_cache.c");
    for mode in [("FI_RKEY_MR_MODE", "LOCAL"), ("FI_RKEY_PROFILE", "verbs")] {
        folder.run("cache", source, &[], &[mode]);
        folder.run("cache", source, &["all"], &[mode]);
    }
}

/// Proves partly: FI-238, FI-240 (in the libfabric provider)
#[test]
fn environment_variables_turn_the_cache_off() {
    let folder = Folder::new("off");
    let source = include_str!("programs/mr_cache.c");
    for variable in [
        ("FI_MR_CACHE_MONITOR", "disabled"),
        ("FI_MR_CACHE_MAX_COUNT", "0"),
    ] {
        let environment = [("FI_RKEY_MR_MODE", "LOCAL"), variable];
        folder.run("off", source, &["off"], &environment);
    }
}

/// Every name that the system's libfabric prints, ours prints too; ours also has later names.
#[test]
fn fi_tostr_prints_every_name_of_the_systems_libfabric() {
    let folder = Folder::new("names");
    let Some(program) = folder.compile("names", include_str!("programs/names.c")) else {
        return;
    };
    let lines = |command: &mut Command| {
        let output = command.output().expect("it can be started");
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let ours = lines(&mut folder.on_ours(&program));
    let theirs = lines(&mut Command::new(&program));
    let mut rest = ours.iter();
    for line in &theirs {
        assert!(rest.any(|own| own == line), "missing or misplaced: {line}");
    }
    assert!(theirs.len() > 700 && ours.len() < theirs.len() + 40);
}

/// One of libfabric's own programs on our library; `None` if it is not installed.
fn installed(folder: &Folder, name: &str) -> Option<Command> {
    if !rkey_harness::process::exists(name) {
        println!("skipped: {name} is not installed");
        return None;
    }
    Some(folder.on_ours(name))
}

#[test]
fn fi_info_shows_the_provider() {
    let folder = Folder::new("info");
    let Some(_) = installed(&folder, "fi_info") else {
        return;
    };
    let shown = |words: &[&str]| {
        let mut command = folder.on_ours("fi_info");
        let output = command.args(words).output().expect("it can be started");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let all = shown(&[]);
    for kind in ["FI_EP_RDM", "FI_EP_MSG", "FI_EP_DGRAM"] {
        assert!(all.contains(&format!("type: {kind}")), "{all}");
    }
    let others = |line: &&str| line.starts_with("provider: ") && *line != "provider: rkey";
    assert_eq!(all.lines().find(others), None, "{all}");
    assert_eq!(shown(&["-p", "rkey"]), all);
    let long = shown(&["-v", "-t", "FI_EP_RDM"]);
    assert!(long.contains("\n        prov_name: rkey\n"), "{long}");
    assert!(
        long.contains("src_addr: fi_sockaddr_in://127.0.0.1:0\n"),
        "{long}"
    );
    assert!(shown(&["-l"]).starts_with("rkey:\n"));
    assert!(shown(&["-e"]).contains("# FI_RKEY_MR_MODE: String\n"));
    assert!(shown(&["--version"]).contains("libfabric: 2.6.0\n"));
}

/// A child process, killed on drop.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A free port for the programs' own connection.
fn port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it has an address");
    address.port().to_string()
}

/// Runs `fi_pingpong` in two processes. The server takes a moment to listen, and the client tries only once.
fn pingpong(folder: &Folder, words: &[&str]) {
    let until = Instant::now() + Duration::from_secs(120);
    let start = |more: &[&str]| {
        let mut command = folder.on_ours("fi_pingpong");
        let words = [&["-p", "rkey", "-c", "-I", "20"], words, more].concat();
        let child = command.args(words).stdout(Stdio::null()).spawn();
        Guard(child.expect("it can be started"))
    };
    let mut port_number = port();
    let mut server = start(&["-B", &port_number]);
    loop {
        let mut client = start(&["-P", &port_number, "127.0.0.1"]);
        if client.0.wait().expect("it ends").success() {
            break;
        }
        assert!(Instant::now() < until, "{words:?}: the client failed");
        if server.0.try_wait().expect("it can be asked").is_some() {
            // Another program had the port.
            port_number = port();
            server = start(&["-B", &port_number]);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(
        server.0.wait().expect("it ends").success(),
        "{words:?}: the server failed"
    );
}

#[test]
fn fi_pingpong_runs_over_every_kind_of_endpoint() {
    let folder = Folder::new("pingpong");
    if installed(&folder, "fi_pingpong").is_none() {
        return;
    }
    for words in [
        &["-e", "rdm"][..],
        &["-e", "rdm", "-m", "tagged"],
        &["-e", "msg"],
        &["-e", "dgram"],
    ] {
        pingpong(&folder, words);
    }
}
