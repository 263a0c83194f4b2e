//! A virtual machine whose kernel provides the device rxe0, and the network that joins it to this host.
//!
//! The network is a namespace with one interface, whose other end is the guest's network card. QEMU runs in it, and needs no
//! privileges but those of a user namespace of its own.

use anyhow::{Context, Result, bail, ensure};
use rkey_harness::namespace::Namespaces;
use rkey_harness::process::{self, Outcome};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The addresses of this host and of the guest.
pub(super) const HOST: [&str; 2] = ["10.77.0.1", "fd77::1"];
pub(super) const GUEST: [&str; 2] = ["10.77.0.2", "fd77::2"];

/// The TCP port on which the guest runs a shell for each connection.
const SHELL: u16 = 4000;
/// The guest device's counters.
const COUNTERS: &str = "/sys/class/infiniband/rxe0/ports/1/hw_counters";
/// Precedes the status of a command in the shell's output.
const STATUS: &str = "guest-status ";
/// The host's end of the network.
const INTERFACE: &str = "guest";
/// How long the guest may take to boot. It takes ten seconds on an idle machine.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// How long a command that only reads may take.
const READ_LIMIT: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(50);

/// What a program printed, and whether it succeeded.
pub(super) struct Said {
    pub(super) succeeded: bool,
    pub(super) output: String,
}

impl From<Outcome> for Said {
    fn from(outcome: Outcome) -> Self {
        Self {
            succeeded: outcome.ok,
            output: outcome.output,
        }
    }
}

/// A running guest; dropping it ends it.
pub(super) struct Guest {
    qemu: Child,
    namespaces: Namespaces,
}

impl Guest {
    /// Boots the image in `image`, with this MTU. Logs go to `folder`.
    pub(super) fn boot(image: &Path, folder: &Path, mtu: u32) -> Result<Self> {
        let (console, errors) = (folder.join("console"), folder.join("qemu"));
        fs::write(&console, "")?;
        let namespaces = Namespaces::find()
            .context("this machine does not permit network namespaces with virtual interfaces")?;
        let mut command = namespaces.create();
        command.args(["sh", "-ec", &script(image, &console, mtu)]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(fs::File::create(&errors)?);
        let qemu = command.spawn().context("cannot start the guest")?;
        let mut guest = Self { qemu, namespaces };
        guest
            .wait_for_boot(&console)
            .with_context(|| fs::read_to_string(&errors).unwrap_or_default())?;
        Ok(guest)
    }

    fn wait_for_boot(&mut self, console: &Path) -> Result<()> {
        let begun = Instant::now();
        loop {
            let said = String::from_utf8_lossy(&fs::read(console)?).into_owned();
            if said.contains("guest ready") {
                return Ok(());
            }
            if let Some(status) = self.qemu.try_wait()? {
                bail!("the guest ended with {status} while it booted:\n{said}");
            }
            ensure!(
                begun.elapsed() < BOOT_LIMIT,
                "the guest did not boot within {} s:\n{said}",
                BOOT_LIMIT.as_secs()
            );
            std::thread::sleep(PAUSE);
        }
    }

    /// Runs a shell command in the guest, for at most `limit`. A program that it leaves behind must not keep its output open.
    pub(super) fn run(&self, command: &str, limit: Duration) -> Result<Said> {
        let line = format!("({command}) </dev/null 2>&1; echo \"{STATUS}$?\"");
        let send = format!("printf '%s\\n' \"$1\" | busybox nc {} {SHELL}", GUEST[0]);
        let mut client = self.host();
        client.args(["sh", "-c", &send, "sh", &line]);
        let said = process::run_unseen(client, limit)?.output;
        let (output, status) = said
            .rsplit_once(STATUS)
            .with_context(|| format!("the guest did not finish: {command}\n{said}"))?;
        Ok(Said {
            succeeded: status.trim() == "0",
            output: output.to_owned(),
        })
    }

    /// The process whose network namespace is the host's end.
    pub(super) fn process(&self) -> u32 {
        self.qemu.id()
    }

    /// A command on the host's end of the network, with the rights of the test. The program's words follow.
    fn host(&self) -> Command {
        let nsenter = Command::new("nsenter");
        self.namespaces.enter(self.process(), nsenter)
    }

    /// A command on the host's end of the network, as an ordinary user. The program's words follow.
    pub(super) fn host_unprivileged(&self) -> Command {
        let nsenter = Command::new("nsenter");
        self.namespaces.enter_unprivileged(self.process(), nsenter)
    }

    /// Makes the network lose one packet of `every`, in both directions. Packets then travel one by one.
    pub(super) fn lose(&self, every: u32) -> Result<()> {
        let lose = format!("udp dport 4791 numgen inc mod {every} < 1 counter drop");
        let chain =
            |hook| format!("chain {hook} {{ type filter hook {hook} priority 0; {lose}; }};");
        let rules = format!(
            "table inet loss {{ {} {} }}",
            chain("input"),
            chain("output")
        );
        let single = format!("ip link set {INTERFACE} gso_max_segs 1");
        for words in [single.split(' ').collect(), vec!["nft", &rules]] {
            process::capture(self.host().args(words))?;
        }
        Ok(())
    }

    /// Whether the guest's device has counted packets that arrived twice, and packets that arrived after a gap.
    ///
    /// # Errors
    /// The guest does not answer.
    pub(super) fn saw_faults(&self) -> Result<Result<(), String>> {
        let counters = ["duplicate_request", "out_of_seq_request"];
        let names = counters.map(|name| format!("{COUNTERS}/{name}")).join(" ");
        let said = self.run(&format!("cat {names}"), READ_LIMIT)?.output;
        let counts: Vec<u64> = said.lines().filter_map(|line| line.parse().ok()).collect();
        let saw = counts.len() == counters.len() && !counts.contains(&0);
        Ok(saw
            .then_some(())
            .ok_or_else(|| format!("the guest should have counted {counters:?}, but shows {said}")))
    }

    /// How many packets were lost in each direction.
    pub(super) fn lost(&self) -> Result<Vec<u64>> {
        let rules = process::capture(self.host().args(["nft", "list", "table", "inet", "loss"]))?;
        let counts = rules.split("counter packets ").skip(1);
        let number = |rest: &str| rest.split(' ').next().and_then(|word| word.parse().ok());
        Ok(counts.filter_map(number).collect())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// A shell script that sets up the network and becomes QEMU.
fn script(image: &Path, console: &Path, mtu: u32) -> String {
    let [ipv4, ipv6] = HOST;
    let [guest4, guest6] = GUEST;
    let path = |path: PathBuf| path.display().to_string();
    let (kernel, files) = (path(image.join("vmlinuz")), path(image.join("initrd.gz")));
    let console = console.display();
    // Without `tsc=reliable`, the emulated processor's clock is slow to read.
    format!(
        "ip link set lo up
        ip tuntap add {INTERFACE} mode tap
        ip link set {INTERFACE} mtu {mtu} up
        ip address add {ipv4}/24 dev {INTERFACE}
        ip address add {ipv6}/64 dev {INTERFACE} nodad
        exec setpriv --pdeathsig KILL qemu-system-x86_64 -accel tcg,thread=multi -cpu qemu64 -smp 2 -m 1024 \
          -nodefaults -no-user-config -display none -no-reboot -kernel '{kernel}' -initrd '{files}' \
          -append 'console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable \
            guest.mtu={mtu} guest.ipv4={guest4} guest.ipv6={guest6} guest.peers={ipv4},{ipv6}' \
          -netdev tap,id=net,ifname={INTERFACE},script=no,downscript=no -device virtio-net-pci,netdev=net,romfile= \
          -serial 'file:{console}'"
    )
}
