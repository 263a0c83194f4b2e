//! The conditions of a run, for the head of its results: the machine, the kernel and the cores.

use serde::Serialize;

/// The conditions without which a figure is meaningless.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    /// The processor's name, from the kernel.
    pub(crate) cpu: String,
    /// Processors that are online.
    pub(crate) processors: usize,
    /// Kernel release.
    pub(crate) kernel: String,
    /// Whether this is a virtual machine, where interrupts between processors are expensive.
    pub(crate) virtual_machine: bool,
    /// Cores of the initiator and of the target.
    pub(crate) cores: (usize, usize),
    /// The program's build profile.
    pub(crate) build: &'static str,
}

impl Machine {
    /// Reads the conditions of this machine.
    pub(crate) fn look(cores: (usize, usize)) -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let numbers = [field("cpu family"), field("model\t"), field("stepping")]
            .map(Option::unwrap_or_default);
        let [family, model, stepping] = numbers;
        let name = field("model name").unwrap_or_else(|| "unknown processor".into());
        Self {
            cpu: format!("{name} (family {family}, model {model}, stepping {stepping})"),
            processors: cpuinfo
                .lines()
                .filter(|line| line.starts_with("processor"))
                .count(),
            kernel: kernel.trim().to_owned(),
            virtual_machine: field("flags").is_some_and(|flags| flags.contains(" hypervisor")),
            cores,
            build: if cfg!(debug_assertions) {
                "debug (figures are meaningless)"
            } else {
                "release"
            },
        }
    }

    /// The head of the printed results.
    pub(crate) fn describe(&self) -> String {
        let place = if self.virtual_machine {
            "virtual machine"
        } else {
            "bare metal"
        };
        format!(
            "{}, {} processors, {place}, Linux {}, {} build\n\
             two processes pinned to cores {} and {}, both polling; median (best-worst) of the repetitions; \
             all contestants take turns, repetition by repetition\n\
             cores apart: round trip of a cache line to the other core, and bandwidth from one core's cache to the other's, \
             before and after each repetition; floor: half that round trip\n\
             static: the same buffer every time; rotating: several in turn; \
             touched: the initiator rewrites the source and the target reads the destination each time",
            self.cpu, self.processors, self.kernel, self.build, self.cores.0, self.cores.1
        )
    }
}

/// Whether this process may run on a core.
pub(crate) fn may_use(core: usize) -> bool {
    let allowed = rustix::thread::sched_getaffinity(None);
    core < rustix::thread::CpuSet::MAX_CPU && allowed.is_ok_and(|set| set.is_set(core))
}

/// Pins this thread, and those that it starts, to one core. Warns if it cannot.
pub(crate) fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        super::complain(format_args!(
            "cannot pin to core {core}: {error}; the figures will vary more"
        ));
    }
}
