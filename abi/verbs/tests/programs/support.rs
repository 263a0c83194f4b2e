//! Runs programs with the library, alone or as server and client.
// UNSAFETY: the standard library cannot bind a socket without listening.
#![allow(unsafe_code)]

use rkey_harness::ports::listens_on_tcp;
use rkey_kit::delivery::{self, VERBS};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long a program may run before it counts as hanging. Most take a fraction of a second, but test machines may be busy, and
/// perftest keeps them busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);
/// The name of our device, which the programs print.
pub(crate) const DEVICE: &str = "rkey0";

/// A directory with links to the library under its installed names, and with the output of programs.
pub(crate) struct Stage {
    folder: PathBuf,
}

impl Stage {
    pub(crate) fn new(test: &str) -> Self {
        let own = std::env::current_exe().expect("a test has a path");
        let beside = own.parent().expect("the file has a directory");
        let library = VERBS
            .find(beside)
            .expect("cargo builds the library for its tests");
        let folder = rkey_harness::temporary_folder(&format!("rkey-{test}"));
        VERBS
            .put_into(&folder, &library)
            .expect("links can be made");
        Self { folder }
    }

    /// Replaces the link with a copy of the library, for users who cannot access cargo's directory.
    pub(crate) fn copy_libraries(&self) {
        rkey_harness::replace_link_with_copy(&self.file(VERBS.file));
    }

    /// A file in the directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A command whose environment makes the loader find the library.
    pub(crate) fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command.envs(delivery::environment(&self.folder, |name| {
            std::env::var_os(name)
        }));
        command.env_remove("RKEY_LOG");
        command
    }

    /// Starts a command. Its output goes to a file.
    pub(crate) fn start(&self, mut command: Command, name: &str) -> Running {
        let said = self.file(&format!("{name}.said"));
        let file = File::create(&said).expect("a file can be made");
        let errors = file.try_clone().expect("a descriptor is free");
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        let shown = format!("{command:?}");
        let child = command.spawn().unwrap_or_else(|error| {
            panic!("{error}: {shown}; `cargo xtask test` installs the programs that the tests need")
        });
        Running { child, said, shown }
    }

    /// Runs a program until it exits, and returns its output.
    pub(crate) fn run(&self, program: &str, words: &[&str]) -> String {
        let mut command = self.command(program);
        command.args(words);
        self.start(command, "program").succeed()
    }

    /// Runs a server that listens on a port, and a client. Panics unless both succeed; returns their output.
    pub(crate) fn pair(
        &self,
        program: &str,
        words: &[&str],
        change: impl Fn(&mut Command),
    ) -> [String; 2] {
        let port = Port::new();
        let side = |name: &str, peer: Option<&str>| {
            let mut command = self.command(program);
            command.args(["-p", &port.text()]).args(words);
            if program.starts_with("ib_") {
                // On a busy machine, perftest may be unable to measure the processor's frequency: it then fails without -F.
                command.arg("-F");
            }
            command.args(peer);
            change(&mut command);
            self.start(command, name)
        };
        let mut server = side("server", None);
        server.wait_until_it_listens(port.number);
        let mut client = side("client", Some("127.0.0.1"));
        // If the client fails, its server may wait forever.
        let status = client.wait();
        if !status.is_some_and(|status| status.success()) {
            server.kill();
            panic!(
                "{}: {status:?}\n{}\nserver:\n{}",
                client.shown,
                client.text(),
                server.text()
            );
        }
        [server.succeed(), client.text()]
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A free port of this host. While this value lives, the kernel does not assign the port to programs that ask for any port.
/// Programs can still bind it by number, because they set `SO_REUSEADDR`, and we do not listen.
pub(crate) struct Port {
    pub(crate) number: u16,
    _held: OwnedFd,
}

impl Port {
    pub(crate) fn new() -> Self {
        let (on, mut len) = (
            1 as libc::c_int,
            size_of::<libc::sockaddr_in>() as libc::socklen_t,
        );
        let on_len = size_of_val(&on) as libc::socklen_t;
        // SAFETY: our own values, with their lengths; all zeros is an address that means "any".
        unsafe {
            let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
            assert!(fd >= 0, "a descriptor is free");
            let held = OwnedFd::from_raw_fd(fd);
            let mut address: libc::sockaddr_in = std::mem::zeroed();
            address.sin_family = libc::AF_INET as libc::sa_family_t;
            let at = (&raw mut address).cast::<libc::sockaddr>();
            let (level, option) = (libc::SOL_SOCKET, libc::SO_REUSEADDR);
            let results = [
                libc::setsockopt(
                    held.as_raw_fd(),
                    level,
                    option,
                    (&raw const on).cast(),
                    on_len,
                ),
                libc::bind(held.as_raw_fd(), at, len),
                libc::getsockname(held.as_raw_fd(), at, &raw mut len),
            ];
            assert_eq!(results, [0; 3], "a port is free");
            Self {
                number: u16::from_be(address.sin_port),
                _held: held,
            }
        }
    }

    /// The port as an argument.
    pub(crate) fn text(&self) -> String {
        self.number.to_string()
    }
}

/// A running program, killed on drop.
pub(crate) struct Running {
    child: Child,
    said: PathBuf,
    shown: String,
}

impl Running {
    /// Its output so far.
    pub(crate) fn text(&self) -> String {
        let bytes = std::fs::read(&self.said).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until the program exits. Returns `None` if it hangs.
    pub(crate) fn wait(&mut self) -> Option<ExitStatus> {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().expect("the child can be awaited") {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }

    /// Waits until the program exits. Returns its status (`None` if it hangs) and its output.
    pub(crate) fn end(mut self) -> (Option<ExitStatus>, String) {
        (self.wait(), self.text())
    }

    /// Waits until the program exits, and returns its output. Panics unless it succeeds.
    pub(crate) fn succeed(mut self) -> String {
        let status = self.wait();
        let text = self.text();
        assert!(
            status.is_some_and(|status| status.success()),
            "{}: {status:?} (None means that it hangs)\n{text}",
            self.shown
        );
        text
    }

    /// Stops the program, as a debugger does. It still exists, and its kernel acknowledges what arrives over TCP.
    pub(crate) fn stop(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let stopped = rustix::process::kill_process(pid, rustix::process::Signal::STOP);
        stopped.expect("it has not ended");
    }

    /// The process.
    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    pub(crate) fn has_exited(&mut self) -> bool {
        let status = self.child.try_wait();
        status.expect("the child can be awaited").is_some()
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits until the program listens on a port, or has exited.
    pub(crate) fn wait_until_it_listens(&mut self, port: u16) {
        let started = Instant::now();
        while !listens_on_tcp(self.child.id(), port) && started.elapsed() < PATIENCE {
            if self.has_exited() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}
