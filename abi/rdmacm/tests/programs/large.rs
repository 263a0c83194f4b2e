//! Larger programs that connect through librdmacm: a storage target and its initiator (iSER), the migration of a virtual machine, and
//! a library for remote persistent memory. The first two also run between two hosts.

use crate::hosts::{Hosts, Ready, SERVER, open_folder};
use crate::support::{Port, Running, Stage, listens, outside};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

const TCP: u16 = 0x0106;

/// Where programs run.
enum Place {
    /// Both on this host.
    Here,
    /// The server on the first host, and its client on the second.
    Apart(Hosts),
}

impl Place {
    /// Two hosts, if this machine permits network namespaces.
    fn apart() -> Option<Self> {
        Hosts::new(4400).map(Self::Apart)
    }

    /// The server's address.
    const fn address(&self) -> &str {
        match self {
            Self::Here => "127.0.0.1",
            Self::Apart(_) => SERVER,
        }
    }

    fn command(&self, stage: &Stage, at: usize, program: &str) -> Command {
        match self {
            Self::Here => stage.command(program),
            Self::Apart(hosts) => hosts.command(stage, at, &[program]),
        }
    }

    /// Starts a server, and waits until it listens.
    fn serve(&self, stage: &Stage, command: Command, port: u16) -> Running {
        match self {
            Self::Here => stage.server_when(command, || listens(TCP, port)),
            Self::Apart(hosts) => {
                hosts.wait_until(Ready::Cm(TCP, port), stage.start(command, "server"))
            }
        }
    }
}

/// tgt's target, with one disk that one initiator may use.
struct Target {
    place: Place,
    stage: Stage,
    port: Port,
    server: Running,
    _tcp: Port,
}

impl Target {
    const NAME: &str = "iqn.2001-04.com.example:disk";
    const INITIATOR: &str = "iqn.2001-04.com.example:initiator";
    const SIZE: u64 = 4 << 20;

    fn new(place: Place) -> Self {
        // tgt cannot listen on larger ports.
        let (stage, port, tcp) = (Stage::new("tgt"), Port::small(), Port::new());
        let folder = open_folder(&stage);
        let disk = std::fs::File::create(folder.join("disk")).expect("a file can be created");
        disk.set_len(Self::SIZE).expect("a file can grow");
        let all = PermissionsExt::from_mode(0o666);
        disk.set_permissions(all).expect("the file is ours");
        let mut command = place.command(&stage, 0, "tgtd");
        command
            .env("TGT_IPC_SOCKET", folder.join("control"))
            .arg("-f")
            .args([
                "--iscsi",
                &format!("portal={}:{}", place.address(), tcp.number),
            ])
            .args(["--iser", &format!("port={},pool_sz_mb=16", port.number)]);
        let mut server = place.serve(&stage, command, port.number);
        while !folder.join("control.0").exists() && !server.has_ended() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let target = Self {
            place,
            stage,
            port,
            server,
            _tcp: tcp,
        };
        let disk = folder.join("disk");
        target.set("new", "target", &[Path::new("-T"), Path::new(Self::NAME)]);
        let unit = ["--lun", "1", "-b"].map(Path::new);
        target.set("new", "logicalunit", &[&unit[..], &[&disk]].concat());
        // Over iSER, tgt checks both lists, and refuses an initiator that is not in both.
        target.set("bind", "target", &["-I", "ALL"].map(Path::new));
        target.set("bind", "target", &["-Q", Self::INITIATOR].map(Path::new));
        target
    }

    fn set(&self, operation: &str, mode: &str, more: &[&Path]) {
        let mut command = self.place.command(&self.stage, 0, "tgtadm");
        command
            .env("TGT_IPC_SOCKET", open_folder(&self.stage).join("control"))
            .args(["--lld", "iser", "--tid", "1"])
            .args(["--op", operation, "--mode", mode])
            .args(more);
        let output = command
            .output()
            .expect("`cargo xtask test` installs the program");
        let said = self.server.text();
        assert!(output.status.success(), "{output:?}\nserver: {said}");
    }

    /// Runs one of libiscsi's programs, and returns its output. The programs give up if the target does not answer within a second,
    /// which may happen on a busy machine; such a run is repeated.
    fn initiator(&self, program: &str, words: &[&str]) -> String {
        /// libiscsi 1.19 reads a list (`tx_desc` in its `lib/iser.c`) in memory from `malloc` that it has not initialized, and sometimes
        /// crashes. With this, `malloc` returns memory of zeros.
        const ZEROS: (&str, &str) = (
            "GLIBC_TUNABLES",
            "glibc.malloc.perturb=255:glibc.malloc.tcache_count=0",
        );
        const LATE: &str = "revents is not POLLIN";
        const TIMES: usize = 5;
        let (address, port) = (self.place.address(), self.port.number);
        let unit = format!("iser://{address}:{port}/{}/1", Self::NAME);
        for _ in 0..TIMES {
            let mut command = self.place.command(&self.stage, 1, program);
            command.args(["-i", Self::INITIATOR]).args(words).arg(&unit);
            command.env(ZEROS.0, ZEROS.1);
            let mut client = self.stage.start(command, "initiator");
            let status = client.wait();
            let said = client.text();
            if !said.contains(LATE) {
                let succeeds = status.is_some_and(|status| status.success());
                let server = self.server.text();
                assert!(succeeds, "{program}: {status:?} {said}\nserver: {server}");
                return said;
            }
        }
        let server = self.server.text();
        panic!("the target answered too late in all {TIMES} runs: {server}");
    }
}

/// tgt as the target and libiscsi as the initiator. libiscsi's tests write and read the disk.
#[test]
fn a_disk_is_used_over_iser() {
    use_disk(Place::Here);
}

#[test]
fn a_disk_of_another_host_is_used_over_iser() {
    if let Some(place) = Place::apart() {
        use_disk(place);
    }
}

fn use_disk(place: Place) {
    let target = Target::new(place);
    let said = target.initiator("iscsi-inq", &[]);
    assert!(said.contains("VIRTUAL-DISK"), "{said}");
    let said = target.initiator("iscsi-readcapacity16", &[]);
    let size = format!("Total size:{}", Target::SIZE);
    assert!(said.contains(&size), "{said}");
    // In `Verify10`, the initiator reads blocks and sends them back, and the target compares.
    for test in [
        "Write10.Simple",
        "Read10.Simple",
        "WriteVerify16.Simple",
        "Verify10.Simple",
        "Verify10.Mismatch",
    ] {
        let test = format!("ALL.{test}");
        let said = target.initiator("iscsi-test-cu", &["-d", "-f", "-n", "-t", &test]);
        let passes = said.contains("Tests completed with return value: 0");
        assert!(passes && !said.contains("SKIPPED"), "{test}: {said}");
    }
    // The tests leave their pattern on the disk.
    let disk = open_folder(&target.stage).join("disk");
    let disk = std::fs::read(disk).expect("the file exists");
    assert!(disk.iter().any(|byte| *byte != 0));
}

/// A virtual machine that does not run, with its control socket.
struct Machine {
    running: Running,
    control: BufReader<UnixStream>,
}

impl Machine {
    /// The size of its memory, in MiB.
    const SIZE: &str = "24";

    fn new(place: &Place, stage: &Stage, at: usize, words: &[&str]) -> Self {
        let name = ["target", "source"][at];
        let path = open_folder(stage).join(format!("{name}.control"));
        let mut command = place.command(stage, at, "qemu-system-x86_64");
        command
            .args(["-machine", "q35", "-accel", "tcg", "-m", Self::SIZE])
            .args(["-nodefaults", "-display", "none", "-S", "-qmp"])
            .arg(format!("unix:{},server=on,wait=off", path.display()))
            .args(words);
        let mut running = stage.start(command, name);
        let control = loop {
            match UnixStream::connect(&path) {
                Ok(control) => break control,
                Err(error) => assert!(!running.has_ended(), "{error}: {}", running.text()),
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        let mut machine = Self {
            running,
            control: BufReader::new(control),
        };
        machine.line("QMP");
        machine.ask(r#"{"execute":"qmp_capabilities"}"#);
        machine
    }

    /// The next line that contains a word.
    fn line(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            let length = self.control.read_line(&mut line);
            let is_open = length.is_ok_and(|length| length > 0);
            assert!(is_open, "QEMU ends: {}", self.running.text());
            if line.contains(word) {
                return line;
            }
            assert!(!line.contains("\"error\""), "{line}");
        }
    }

    /// Executes a command. Returns the answer.
    fn ask(&mut self, command: &str) -> String {
        let control = self.control.get_mut();
        control
            .write_all(command.as_bytes())
            .expect("QEMU reads its commands");
        self.line("\"return\"")
    }

    /// Makes QEMU register all memory at once, instead of parts on demand.
    fn pin_all(&mut self) {
        self.ask(
            r#"{"execute":"migrate-set-capabilities","arguments":{"capabilities":[{"capability":"rdma-pin-all","state":true}]}}"#,
        );
    }
}

/// QEMU migrates a virtual machine over RDMA, with memory that is registered on demand, and with memory that is registered at once.
/// The guest does not run; its memory has a pattern.
#[test]
fn qemu_migrates_a_virtual_machine() {
    migrate(&Place::Here);
}

#[test]
fn qemu_migrates_a_virtual_machine_to_another_host() {
    if let Some(place) = Place::apart() {
        migrate(&place);
    }
}

fn migrate(place: &Place) {
    const PATTERN: usize = 5_000_000;
    for pins_all in [false, true] {
        let (stage, port) = (Stage::new("qemu"), Port::new());
        let pattern: Vec<u8> = (0..PATTERN as u32).map(|at| (at % 251) as u8).collect();
        std::fs::write(stage.path("pattern"), &pattern).expect("a file can be written");
        let uri = format!("rdma:{}:{}", place.address(), port.number);
        let loader = format!(
            "loader,file={},addr=0x200000,force-raw=on",
            stage.path("pattern").display()
        );
        let mut target = Machine::new(place, &stage, 0, &["-incoming", "defer"]);
        let mut source = Machine::new(place, &stage, 1, &["-device", &loader]);
        if pins_all {
            target.pin_all();
            source.pin_all();
        }
        target.ask(&format!(
            r#"{{"execute":"migrate-incoming","arguments":{{"uri":"{uri}"}}}}"#
        ));
        source.ask(&format!(
            r#"{{"execute":"migrate","arguments":{{"uri":"{uri}"}}}}"#
        ));
        loop {
            let state = source.ask(r#"{"execute":"query-migrate"}"#);
            let texts = || format!("{}\n{}", source.running.text(), target.running.text());
            assert!(!state.contains("\"failed\""), "{state}\n{}", texts());
            if state.contains("\"completed\"") {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        // The source has sent everything; the target may still load the state of the devices.
        while target
            .ask(r#"{"execute":"query-status"}"#)
            .contains("inmigrate")
        {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let copy = open_folder(&stage).join("copy");
        target.ask(&format!(
            r#"{{"execute":"pmemsave","arguments":{{"val":2097152,"size":{PATTERN},"filename":"{}"}}}}"#,
            copy.display()
        ));
        let copied = std::fs::read(copy).expect("QEMU has written it") == pattern;
        assert!(copied, "the memory differs");
        for mut machine in [source, target] {
            machine.ask(r#"{"execute":"quit"}"#);
            machine.running.succeed();
        }
    }
}

/// A program of ours on librpma, as Debian ships only the library. librpma takes the device from an identifier that it binds, and an
/// identifier that is bound to a loopback address has none. So it must fail on a host with only loopback addresses.
#[test]
fn a_librpma_program_uses_remote_memory() {
    let (stage, port) = (Stage::new("rpma"), Port::new());
    let number = port.number.to_string();
    let program = stage.compile("rpma", include_str!("rpma.c"), &["-lrpma"]);
    let side = |side: &str, address: &str| {
        let mut command = stage.command(&program);
        command.args([side, address, &number]);
        command
    };
    let Some(address) = outside() else {
        let mut server = stage.start(side("server", "127.0.0.1"), "server");
        let status = server.wait();
        assert!(status.is_some_and(|status| !status.success()));
        let said = server.text();
        assert!(said.contains("rpma_peer_new: Invalid argument"), "{said}");
        return;
    };
    let address = address.to_string();
    let server = stage.server_when(side("server", &address), || listens(TCP, port.number));
    for said in stage.client_of(server, side("client", &address)) {
        assert!(said.ends_with("done\n"), "{said}");
    }
}
