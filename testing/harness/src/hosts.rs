//! Two hosts for a test: two network namespaces, joined by a veth pair or by a [bad network](crate::network). Only packets travel between
//! them: abstract sockets do not cross namespaces, so neither does shared memory.

use crate::namespace::Namespaces;
use crate::network::{self, Conditions, Counts, Forwarder};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long the system may take to create a namespace. It takes milliseconds, but test machines are busy.
const PATIENCE: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(5);

/// The interface of each host.
pub const INTERFACES: [&str; 2] = ["va", "vb"];

/// What the network between two hosts does to packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Network {
    /// Packets of each 1000 that are lost in each direction, at random.
    pub loss: u32,
    /// Whether each packet travels alone: the sender segments.
    segments: bool,
}

impl Network {
    /// A network on which packets travel one by one.
    #[must_use]
    pub fn segmented() -> Self {
        let segments = true;
        Self {
            segments,
            ..Self::default()
        }
    }

    /// The same network, with this loss.
    #[must_use]
    pub fn with_loss(self, loss: u32) -> Self {
        Self { loss, ..self }
    }
}

/// Two hosts, which exist until this value is dropped. All their ports are free.
pub struct Hosts {
    keepers: Vec<Child>,
    namespaces: Namespaces,
    /// The IPv4 and the IPv6 address of each host.
    addresses: [[String; 2]; 2],
    /// The network between the hosts, if it is not a veth pair.
    network: Option<Box<Mutex<Forwarder>>>,
    is_unreliable: bool,
}

impl Hosts {
    /// Creates two hosts, each with an IPv4 address, an IPv6 address and this MTU. Between them is a veth pair, or the network that the
    /// [environment names](crate::network::everywhere). Returns `None` if this machine does not permit network namespaces.
    ///
    /// # Panics
    /// It permits them, but a step fails.
    #[must_use]
    pub fn new(mtu: u32, addresses: &[[&str; 2]; 2]) -> Option<Self> {
        if let Some((program, conditions)) = network::everywhere() {
            return Self::joined(&conditions.both_ways(), &program, &[], mtu, addresses);
        }
        let hosts = Self::apart(addresses)?;
        let there = hosts.keepers[1].id();
        let [ours, theirs] = INTERFACES;
        hosts.ip(
            0,
            &format!("link add {ours} type veth peer name {theirs} netns {there}"),
        );
        hosts.begin(mtu);
        Some(hosts)
    }

    /// Creates two hosts like [`Hosts::new`], with a bad network between them: the conditions of what the first host sends, and of what
    /// the second sends. The network is a process of its own, for which this program is started again with `words` as arguments: it must
    /// then call [`network::serve`]. A sender's packets travel one by one.
    ///
    /// # Panics
    /// This machine permits network namespaces, but a step fails.
    #[must_use]
    pub fn over(
        conditions: &[Conditions; 2],
        words: &[&str],
        mtu: u32,
        addresses: &[[&str; 2]; 2],
    ) -> Option<Self> {
        let program = std::env::current_exe().expect("a program has a path");
        Self::joined(conditions, &program, words, mtu, addresses)
    }

    /// Creates two hosts, whose network is this program.
    fn joined(
        conditions: &[Conditions; 2],
        program: &Path,
        words: &[&str],
        mtu: u32,
        addresses: &[[&str; 2]; 2],
    ) -> Option<Self> {
        let mut hosts = Self::apart(addresses)?;
        if std::fs::File::open("/dev/net/tun").is_err() {
            eprintln!("SKIP: this machine does not permit interfaces of processes (/dev/net/tun)");
            return None;
        }
        let mut command = hosts.enter(0, Command::new("nsenter"));
        command.arg(program).args(words);
        let second = hosts.keepers[1].id();
        let network = Forwarder::start(command, INTERFACES, second, conditions);
        hosts.network = Some(Box::new(Mutex::new(network)));
        hosts.is_unreliable = conditions.iter().any(Conditions::is_unreliable);
        for (at, interface) in INTERFACES.into_iter().enumerate() {
            // The network loses packets only on purpose.
            hosts.ip(at, &format!("link set {interface} txqueuelen 20000"));
        }
        hosts.begin(mtu);
        Some(hosts)
    }

    /// Two namespaces without a network between them.
    fn apart(addresses: &[[&str; 2]; 2]) -> Option<Self> {
        let Some(namespaces) = Namespaces::find() else {
            eprintln!(
                "SKIP: this machine does not permit network namespaces with virtual interfaces"
            );
            return None;
        };
        let mut hosts = Self {
            keepers: Vec::new(),
            namespaces,
            addresses: addresses.map(|of_host| of_host.map(str::to_owned)),
            network: None,
            is_unreliable: false,
        };
        hosts.keep(namespaces.create());
        let mut second = hosts.enter(0, Command::new("nsenter"));
        second.args(["unshare", "--net"]);
        hosts.keep(second);
        Some(hosts)
    }

    /// Takes all interfaces up, with this MTU and the addresses.
    fn begin(&self, mtu: u32) {
        for at in 0..2 {
            self.ip(at, "link set lo up");
            self.set_mtu(at, mtu);
            self.plug(at);
        }
    }

    /// What has happened to the packets that the first host has sent, and to those that the second has sent.
    ///
    /// # Panics
    /// The hosts were not created by [`Hosts::over`].
    #[must_use]
    pub fn counts(&self) -> [Counts; 2] {
        let network = self.network.as_ref();
        network.expect("a bad network").lock().counts()
    }

    /// Whether packets get lost, or arrive twice or out of order, on the network that the environment or [`Hosts::over`] names. Programs then fail by
    /// themselves if they use datagrams or unreliable connections, or if they exit without knowing that their last packets have arrived.
    #[must_use]
    pub fn is_unreliable(&self) -> bool {
        self.is_unreliable
    }

    /// Takes the interface of a host down, as if its cable were pulled. The other host's interface has no carrier then. The
    /// kernel removes the host's IPv6 address.
    ///
    /// # Panics
    /// The kernel refuses.
    pub fn unplug(&self, at: usize) {
        self.ip(at, &format!("link set {} down", INTERFACES[at]));
    }

    /// Takes the interface of a host up, with both addresses: reverses [`Hosts::unplug`].
    ///
    /// # Panics
    /// The kernel refuses.
    pub fn plug(&self, at: usize) {
        self.ip(at, &format!("link set {} up", INTERFACES[at]));
        self.add_addresses(at);
    }

    /// Removes both addresses of a host.
    ///
    /// # Panics
    /// The kernel refuses, for example because the addresses are not there.
    pub fn remove_addresses(&self, at: usize) {
        self.address("del", at, "");
    }

    /// Adds the addresses of a host that it lacks: reverses [`Hosts::remove_addresses`].
    ///
    /// # Panics
    /// The kernel refuses.
    pub fn add_addresses(&self, at: usize) {
        self.address("replace", at, "nodad");
    }

    fn address(&self, verb: &str, at: usize, flags: &str) {
        let (name, [v4, v6]) = (INTERFACES[at], &self.addresses[at]);
        self.ip(at, &format!("address {verb} {v4}/24 dev {name}"));
        self.ip(at, &format!("address {verb} {v6}/64 dev {name} {flags}"));
    }

    /// Changes the MTU of a host's interface, in bytes. Packets that are being sent keep their length.
    ///
    /// # Panics
    /// The kernel refuses.
    pub fn set_mtu(&self, at: usize, mtu: u32) {
        self.ip(at, &format!("link set {} mtu {mtu}", INTERFACES[at]));
    }

    /// Runs `cat` in the namespace that a command creates, which keeps the namespace alive until the test ends.
    fn keep(&mut self, mut command: Command) {
        let own = std::fs::read_link("/proc/self/ns/net").expect("cannot read the namespace");
        let earlier = self.keepers.iter().filter_map(namespace);
        let known: Vec<PathBuf> = earlier.chain([own]).collect();
        // `cat` ends when its input is closed: when the test ends, at the latest.
        let keeper = command.arg("cat").stdin(Stdio::piped());
        let keeper = keeper.spawn().expect("util-linux has unshare and nsenter");
        let is_cat = || {
            let name = std::fs::read_to_string(format!("/proc/{}/comm", keeper.id()));
            name.is_ok_and(|name| name == "cat\n")
        };
        let begun = Instant::now();
        while !is_cat() || namespace(&keeper).is_none_or(|it| known.contains(&it)) {
            assert!(begun.elapsed() < PATIENCE, "no namespace: {command:?}");
            std::thread::sleep(PAUSE);
        }
        self.keepers.push(keeper);
    }

    /// Makes both hosts drop one UDP packet of `every` that arrives at a port. Packets then travel one by one, so that a loss is one
    /// packet. Returns false if the kernel has no filter for that.
    ///
    /// # Panics
    /// `nft` is not installed, or fails for another reason.
    #[must_use]
    pub fn lose(&self, port: u16, every: u32) -> bool {
        self.segment();
        self.filter(&format!(
            "udp dport {port} numgen inc mod {every} < 1 counter drop;"
        ))
    }

    /// Makes both hosts act as a congested router: they mark the packets that arrive at a UDP port, if their sender reacts to marks, as
    /// far as they exceed a rate, in MB/s. Returns false if the kernel has no filter for that.
    ///
    /// # Panics
    /// `nft` is not installed, or fails for another reason.
    #[must_use]
    pub fn mark(&self, port: u16, rate: u32) -> bool {
        let rule = |ip: &str| {
            format!(
                "udp dport {port} {ip} ecn != not-ect limit rate over {rate} mbytes/second \
                 burst 64 kbytes counter {ip} ecn set ce;"
            )
        };
        self.filter(&["ip", "ip6"].map(rule).concat())
    }

    /// Makes the network between the hosts worse. Returns false if the kernel cannot do that.
    ///
    /// # Panics
    /// `nft` is not installed, or fails for another reason.
    #[must_use]
    pub fn impair(&self, network: &Network) -> bool {
        if network.segments {
            self.segment();
        }
        let loss = network.loss;
        if loss == 0 {
            return true;
        }
        self.filter(&format!(
            "meta l4proto {{ tcp, udp }} numgen random mod 1000 < {loss} counter drop;"
        ))
    }

    /// Makes senders segment, so that each packet travels alone.
    fn segment(&self) {
        for (at, interface) in INTERFACES.into_iter().enumerate() {
            self.ip(at, &format!("link set {interface} gso_max_segs 1"));
        }
    }

    /// Applies rules to the packets that arrive at each host. Returns false if the kernel lacks something for them.
    fn filter(&self, rules: &str) -> bool {
        let rules = format!(
            "table inet loss {{ chain arriving {{ type filter hook input priority 0; {rules} }}; }}"
        );
        (0..2).all(|at| {
            let done = self.run(at, &["nft", &rules]);
            let said = String::from_utf8_lossy(&done.stderr);
            let has_program = !said.contains("failed to execute");
            let is_missing = ["not supported", "No such file or directory"];
            if has_program && is_missing.iter().any(|words| said.contains(words)) {
                eprintln!("SKIP: this kernel cannot filter packets: {said}");
                return false;
            }
            assert!(done.status.success(), "nft {rules:?}: {said}");
            true
        })
    }

    /// How many packets each host has dropped.
    ///
    /// # Panics
    /// [`Hosts::lose`] was not called, or did not succeed.
    #[must_use]
    pub fn lost(&self) -> [u64; 2] {
        [0, 1].map(|at| {
            let done = self.run(at, &["nft", "list", "table", "inet", "loss"]);
            let said = String::from_utf8_lossy(&done.stdout);
            let count = said.split_once("counter packets ").map(|(_, rest)| rest);
            let count = count.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
            count.unwrap_or_else(|| panic!("no count: {said}"))
        })
    }

    /// Whether a program on a host listens on a TCP port.
    #[must_use]
    pub fn listens(&self, at: usize, port: u16) -> bool {
        crate::ports::listens_on_tcp(self.keepers[at].id(), port)
    }

    /// How many UDP datagrams have arrived at the sockets of a host, over IPv4 and IPv6.
    ///
    /// # Panics
    /// The host's kernel does not count.
    #[must_use]
    pub fn datagrams(&self, at: usize) -> u64 {
        crate::ports::datagrams(self.keepers[at].id())
    }

    /// Adds the options that make `nsenter` enter a host, with the rights of the test. The program's words follow.
    #[must_use]
    pub fn enter(&self, at: usize, nsenter: Command) -> Command {
        self.namespaces.enter(self.keepers[at].id(), nsenter)
    }

    /// Adds the options that make `nsenter` enter a host as an ordinary user. The program's words follow.
    #[must_use]
    pub fn enter_unprivileged(&self, at: usize, nsenter: Command) -> Command {
        self.namespaces
            .enter_unprivileged(self.keepers[at].id(), nsenter)
    }

    /// A shell script that starts programs on either host, as `ssh` does: its first argument is a host's address, the others are the
    /// command. It is for a launcher on the first host, whose address is `first`. The second host has a name of its own, by which
    /// launchers tell the hosts apart.
    #[must_use]
    pub fn agent(&self, first: &str) -> String {
        let enter = self.enter(1, Command::new("nsenter"));
        // The launcher already is in the hosts' user namespace, if they have one.
        let words = enter.get_args().filter_map(|word| word.to_str());
        let words: Vec<&str> = words.take_while(|word| *word != "--user").collect();
        let words = words.join(" ");
        format!(
            "#!/bin/sh\nhost=$1\nshift\n[ \"$host\" = {first} ] && exec sh -c \"$*\"\n\
             exec nsenter {words} unshare --uts sh -c \"hostname second; $*\"\n"
        )
    }

    /// The user id of unprivileged programs on a host: root's, if the hosts have a user namespace of their own.
    #[must_use]
    pub fn user(&self) -> u32 {
        self.namespaces.user()
    }

    fn ip(&self, at: usize, words: &str) {
        let all: Vec<&str> = std::iter::once("ip")
            .chain(words.split_whitespace())
            .collect();
        let done = self.run(at, &all);
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "ip {words}: {said}");
    }

    /// Runs a program on a host, with the rights of the test.
    fn run(&self, at: usize, words: &[&str]) -> Output {
        let mut command = self.enter(at, Command::new("nsenter"));
        let done = command.args(words).output();
        done.expect("util-linux has nsenter")
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for keeper in &mut self.keepers {
            let _ = keeper.kill();
            let _ = keeper.wait();
        }
    }
}

fn namespace(of: &Child) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{}/ns/net", of.id())).ok()
}
