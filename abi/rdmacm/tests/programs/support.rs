//! Runs programs on the library, alone or as server and client.

use rkey_cm_names::listens;
use rkey_kit::delivery::{self, RDMACM, VERBS};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a program may take before it counts as hanging. Most take a fraction of a second, but test machines are busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(5);

/// A directory with the library under its installed names, and with the output of programs.
pub(crate) struct Stage {
    folder: PathBuf,
}

impl Stage {
    pub(crate) fn new(test: &str) -> Self {
        // Tests with the same name may run at the same time in this process.
        static STAGES: AtomicU32 = AtomicU32::new(0);
        let number = STAGES.fetch_add(1, Ordering::Relaxed);
        let own = std::env::current_exe().expect("a test has a path");
        let beside = own.parent().expect("the file has a directory");
        let name = format!("rkey-cm-{test}-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        // A killed process with the same number may have left it behind.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("cannot create a temporary directory");
        for front_end in [VERBS, RDMACM] {
            let library = front_end
                .find(beside)
                .expect("cargo builds the library for its tests");
            front_end
                .put_into(&folder, &library)
                .expect("links can be made");
        }
        Self { folder }
    }

    /// Writes a file into the directory.
    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.join(name), text).expect("a file can be written");
    }

    /// Compiles a C program that uses librdmacm.
    pub(crate) fn compile(&self, name: &str, source: &str, words: &[&str]) -> PathBuf {
        let (file, program) = (
            self.folder.join(format!("{name}.c")),
            self.folder.join(name),
        );
        self.write(&format!("{name}.c"), source);
        let mut compiler = Command::new("gcc");
        compiler
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o"])
            .args([&program, &file])
            .args(["-lrdmacm", "-libverbs"])
            .args(words);
        let output = compiler.output().expect("`cargo xtask test` installs gcc");
        assert!(output.status.success(), "{output:?}");
        program
    }

    /// A command that finds the library.
    pub(crate) fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command.envs(delivery::environment(&self.folder, |name| {
            std::env::var_os(name)
        }));
        command.env_remove("RKEY_LOG");
        command
    }

    /// Starts a command; its output goes to files.
    pub(crate) fn start(&self, mut command: Command, name: &str) -> Running {
        let said = self.folder.join(format!("{name}.said"));
        let file = File::create(&said).expect("a file can be made");
        let errors = file.try_clone().expect("a descriptor is left");
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        let shown = format!("{command:?}");
        let child = command.spawn().unwrap_or_else(|error| {
            panic!("{error}: {shown}; `cargo xtask test` installs the programs that the tests need")
        });
        Running { child, said, shown }
    }

    /// Starts a server, and waits until it listens at a port of a port space.
    pub(crate) fn server(&self, program: &str, words: &[&str], space: u16, port: u16) -> Running {
        let mut command = self.command(program);
        command.args(words);
        let mut server = self.start(command, "server");
        let begun = Instant::now();
        while !listens(space, port) && begun.elapsed() < PATIENCE {
            if server.has_ended() {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        server
    }

    /// Runs a server and a client; both must succeed. Returns their output.
    pub(crate) fn pair(
        &self,
        program: [&str; 2],
        server: &[&str],
        client: &[&str],
        at: (u16, u16),
    ) -> [String; 2] {
        let mut server = self.server(program[0], server, at.0, at.1);
        let mut command = self.command(program[1]);
        command.args(client);
        let mut client = self.start(command, "client");
        // If the client fails, its server may wait forever.
        let status = client.wait();
        if !status.is_some_and(|status| status.success()) {
            server.kill();
            let (shown, said, other) = (&client.shown, client.text(), server.text());
            panic!("{shown}: {status:?}\n{said}\nserver:\n{other}");
        }
        [server.succeed(), client.text()]
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
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

    /// Waits for its end; `None` if it hangs.
    pub(crate) fn wait(&mut self) -> Option<ExitStatus> {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().expect("the child can be awaited") {
                return Some(status);
            }
            std::thread::sleep(PAUSE);
        }
        None
    }

    /// Waits until it has printed something; panics if it does not.
    pub(crate) fn wait_for(&mut self, words: &str) {
        let started = Instant::now();
        while !self.text().contains(words) {
            let ends = self.has_ended() || started.elapsed() > PATIENCE;
            assert!(!ends, "{}: no \"{words}\"\n{}", self.shown, self.text());
            std::thread::sleep(PAUSE);
        }
    }

    fn has_ended(&mut self) -> bool {
        let status = self.child.try_wait().expect("the child can be awaited");
        status.is_some()
    }

    /// Waits for its successful end and returns its output.
    pub(crate) fn succeed(mut self) -> String {
        let status = self.wait();
        let text = self.text();
        assert!(
            status.is_some_and(|status| status.success()),
            "{}: {status:?} (None: it hangs)\n{text}",
            self.shown
        );
        text
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A TCP port that the kernel has given us. It is not a port of the connection manager, but while we hold it, no other test on this
/// machine gets the same number.
pub(crate) struct Port {
    pub(crate) number: u16,
    _held: std::net::TcpListener,
}

impl Port {
    pub(crate) fn new() -> Self {
        let held = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is left");
        let number = held.local_addr().expect("it has an address").port();
        Self {
            number,
            _held: held,
        }
    }
}

/// Which ports programs listen at.
mod rkey_cm_names {
    use rkey_device::config::Share;
    use rkey_device::names::{Scope, cm_port_name};

    /// The flag of listening sockets in `/proc/net/unix`.
    const LISTENS: &str = "00010000";

    /// Whether a program of this user listens at a port. Does not connect.
    pub(super) fn listens(space: u16, port: u16) -> bool {
        let service = u64::from(space) << 16 | u64::from(port);
        let name = format!("@{}", cm_port_name(Scope::of(Share::User), service));
        let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
        table.lines().any(|line| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            words.get(3) == Some(&LISTENS) && words.last() == Some(&name.as_str())
        })
    }
}
