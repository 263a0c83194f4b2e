//! Runs programs with the library, alone or as server and client.

pub(crate) use rkey_cm_names::{listens, listens_in};
use rkey_harness::ports::Turn;
use rkey_kit::delivery::{self, RDMACM, VERBS};
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt};
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long a program may run before it counts as hanging. Most take a fraction of a second, but test machines may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(5);

/// A directory with links to the library under its installed names, and with the output of programs.
pub(crate) struct Stage {
    folder: PathBuf,
}

impl Stage {
    pub(crate) fn new(test: &str) -> Self {
        let own = std::env::current_exe().expect("a test has a path");
        let beside = own.parent().expect("the file has a directory");
        let folder = rkey_harness::temporary_folder(&format!("rkey-cm-{test}"));
        for front_end in [VERBS, RDMACM] {
            let library = front_end
                .find(beside)
                .expect("cargo builds the library before its tests");
            front_end
                .put_into(&folder, &library)
                .expect("cannot link the library");
        }
        Self { folder }
    }

    /// The path of a file in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Writes a file into the directory.
    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.join(name), text).expect("cannot write a file");
    }

    /// The path of a file in the directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
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
        let said = self.folder.join(format!("{name}.said"));
        let file = File::create(&said).expect("cannot create a file");
        let errors = file.try_clone().expect("no descriptor is available");
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        let shown = format!("{command:?}");
        let child = command.spawn().unwrap_or_else(|error| {
            panic!("{error}: {shown}; `cargo xtask test` installs the programs that the tests need")
        });
        Running { child, said, shown }
    }

    /// Starts a server, and waits until it listens on a port in a port space.
    pub(crate) fn server(&self, program: &str, words: &[&str], space: u16, port: u16) -> Running {
        let mut command = self.command(program);
        command.args(words);
        self.serve(command, space, port)
    }

    /// Starts a command, and waits until it listens on a port in a port space.
    pub(crate) fn serve(&self, command: Command, space: u16, port: u16) -> Running {
        self.server_when(command, || listens(space, port))
    }

    /// Starts a server, and waits until it is ready or has exited.
    pub(crate) fn server_when(&self, command: Command, is_ready: impl Fn() -> bool) -> Running {
        let mut server = self.start(command, "server");
        let begun = Instant::now();
        while !is_ready() && begun.elapsed() < PATIENCE {
            if server.has_ended() {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        server
    }

    /// Runs a server and a client. Panics unless both succeed; returns their output.
    pub(crate) fn pair(
        &self,
        program: [&str; 2],
        server: &[&str],
        client: &[&str],
        at: (u16, u16),
    ) -> [String; 2] {
        let server = self.server(program[0], server, at.0, at.1);
        let mut command = self.command(program[1]);
        command.args(client);
        self.client_of(server, command)
    }

    /// Runs a client of a running server. Panics unless both succeed; returns their output.
    pub(crate) fn client_of(&self, mut server: Running, client: Command) -> [String; 2] {
        let mut client = self.start(client, "client");
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

    /// Waits until the program exits. Returns `None` if it hangs.
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

    /// Waits until the program exits, or until `is_enough` returns true for its output.
    pub(crate) fn wait_or(&mut self, is_enough: impl Fn(&str) -> bool) {
        let started = Instant::now();
        while !self.has_ended() && started.elapsed() < PATIENCE {
            if is_enough(&self.text()) {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits until the program's output contains `words`. Panics if the program exits or hangs before that.
    pub(crate) fn wait_for(&mut self, words: &str) {
        let started = Instant::now();
        while !self.text().contains(words) {
            let ends = self.has_ended() || started.elapsed() > PATIENCE;
            assert!(
                !ends,
                "{} did not print \"{words}\":\n{}",
                self.shown,
                self.text()
            );
            std::thread::sleep(PAUSE);
        }
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        let status = self.child.try_wait().expect("the child can be awaited");
        status.is_some()
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

/// A TCP port that the kernel has assigned to us. It is not a port of the connection manager, but while we hold it, no other test on
/// this machine gets the same number. The programs can still listen on it, because they set `SO_REUSEADDR`, and we do not listen.
pub(crate) struct Port {
    pub(crate) number: u16,
    _held: OwnedFd,
}

impl Port {
    pub(crate) fn new() -> Self {
        Self::hold(0).expect("no port is available")
    }

    /// A port below 32,768, for programs that store the number in a signed integer of 16 bits. The kernel assigns larger ones.
    pub(crate) fn small() -> Self {
        let first = std::process::id() as u16 % 8192;
        let all = (0..8192).map(|at| 16_384 + (first + at) % 8192);
        let mut free = all.filter_map(|number| Self::hold(number).ok());
        free.next().expect("no port is available")
    }

    fn hold(number: u16) -> rustix::io::Result<Self> {
        let held =
            socket(AddressFamily::INET, SocketType::STREAM, None).expect("cannot create a socket");
        // Only a port that the kernel assigns is ours alone although it may be reused.
        let is_assigned = number == 0;
        sockopt::set_socket_reuseaddr(&held, is_assigned).expect("every socket has this option");
        bind(&held, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, number))?;
        sockopt::set_socket_reuseaddr(&held, true).expect("every socket has this option");
        let address = getsockname(&held).expect("a bound socket has an address");
        let address = SocketAddrV4::try_from(address).expect("the address is IPv4");
        Ok(Self {
            number: address.port(),
            _held: held,
        })
    }
}

/// The source address that the kernel would choose to reach other hosts, if there is one besides loopback addresses.
pub(crate) fn outside() -> Option<Ipv4Addr> {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("cannot create a socket");
    // Connecting a UDP socket sends nothing.
    socket.connect("192.0.2.1:9").ok()?;
    match socket.local_addr().ok()?.ip() {
        IpAddr::V4(ip) if !ip.is_loopback() => Some(ip),
        _ => None,
    }
}

/// Waits until no other test uses something that all programs on this host share.
pub(crate) fn turn(what: &str) -> Turn {
    Turn::take(what, PATIENCE).unwrap_or_else(|error| panic!("{error}"))
}

/// Finds out on which ports of the connection manager programs listen.
mod rkey_cm_names {
    use rkey_device::config::Share;
    use rkey_device::names::{Scope, cm_port_name};

    /// The flags of listening sockets in `/proc/net/unix`.
    const LISTENS: &str = "00010000";

    /// Whether a program of this user listens on a port. Does not connect.
    pub(crate) fn listens(space: u16, port: u16) -> bool {
        is_listed("self", Scope::of(Share::User), space, port)
    }

    /// Like [`listens`], for a program of user `uid` in the network namespace of a process.
    pub(crate) fn listens_in(process: u32, uid: u32, space: u16, port: u16) -> bool {
        is_listed(&process.to_string(), Scope::User(uid), space, port)
    }

    fn is_listed(process: &str, scope: Scope, space: u16, port: u16) -> bool {
        let service = u64::from(space) << 16 | u64::from(port);
        let name = format!("@{}", cm_port_name(scope, service));
        let table = format!("/proc/{process}/net/unix");
        let table = std::fs::read_to_string(table).unwrap_or_default();
        table.lines().any(|line| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            words.get(3) == Some(&LISTENS) && words.last() == Some(&name.as_str())
        })
    }
}
