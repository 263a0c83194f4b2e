//! The runtimes of accelerators behind one trait.
//!
//! A runtime is loaded once and stays loaded: programs may still use it when we do not.

mod cuda;
mod level_zero;
mod library;
mod neuron;
mod rocr;
mod synapse_ai;

use crate::Kind;
use parking_lot::Mutex;
use rkey_base::range::VaRange;
use std::fmt::Debug;
use std::sync::OnceLock;
use thiserror::Error;

/// A runtime is not on this host.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{kind} memory is not available: {why}")]
pub struct Absent {
    /// The kind whose runtime is missing.
    pub kind: Kind,
    /// The loader's message, or the missing function.
    pub why: String,
}

/// Where the bytes of an allocation are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryLocation {
    /// On the accelerator.
    Device,
    /// On the processor that used them last: the host's or the accelerator's. The runtime copies them.
    Migrating,
    /// On the host: the processor copies them.
    Host,
}

/// An allocation of a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) range: VaRange,
    /// Distinguishes allocations that had the same address one after the other.
    pub(crate) id: u64,
    /// The number of the accelerator, if the runtime reports it.
    pub(crate) device: Option<u64>,
    pub(crate) location: MemoryLocation,
    /// What the runtime needs for a copy.
    pub(crate) context: usize,
}

/// A call of a runtime failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{call} failed: {code}")]
pub(crate) struct Failure {
    pub(crate) call: &'static str,
    /// The runtime's name for the error, or its number.
    pub(crate) code: String,
}

impl Failure {
    pub(crate) fn new(call: &'static str, code: impl ToString) -> Self {
        let code = code.to_string();
        Self { call, code }
    }
}

/// A loaded runtime. Calls may come from any thread.
pub(crate) trait Runtime: Debug + Send + Sync {
    /// The allocation with this address; `None` if the address is not the runtime's. Runtimes that cannot tell always return
    /// `None`.
    fn find(&self, address: u64) -> Result<Option<Allocation>, Failure> {
        let _ = address;
        Ok(None)
    }

    /// Copies from the accelerator. The bytes are inside the allocation, which existed when the runtime was last asked.
    fn load(&self, from: &Allocation, dst: &mut [u8], src: u64) -> Result<(), Failure>;

    /// Copies to the accelerator.
    fn store(&self, to: &Allocation, dst: u64, src: &[u8]) -> Result<(), Failure>;
}

impl Kind {
    /// Loads the runtime's library, if that has not been done.
    ///
    /// # Errors
    /// The host does not have the library, or a function is missing in it.
    pub fn load(self) -> Result<(), Absent> {
        self.runtime().map(|_| ())
    }

    pub(crate) fn runtime(self) -> Result<&'static dyn Runtime, Absent> {
        of(self)
    }
}

static LOADED: [OnceLock<Box<dyn Runtime>>; Kind::ALL.len()] =
    [const { OnceLock::new() }; Kind::ALL.len()];
/// Held while a runtime is loaded.
static LOADING: Mutex<()> = Mutex::new(());

/// The runtime, if it has been loaded.
pub(crate) fn loaded(kind: Kind) -> Option<&'static dyn Runtime> {
    LOADED[kind as usize].get().map(|runtime| &**runtime)
}

/// The runtime. A failure is not remembered: a program may install or load it later.
fn of(kind: Kind) -> Result<&'static dyn Runtime, Absent> {
    if let Some(runtime) = loaded(kind) {
        return Ok(runtime);
    }
    let _loading = LOADING.lock();
    let cell = &LOADED[kind as usize];
    if cell.get().is_none() {
        let runtime: Box<dyn Runtime> = match kind {
            Kind::Cuda => Box::new(cuda::Cuda::load()?),
            Kind::Rocr => Box::new(rocr::Rocr::load()?),
            Kind::LevelZero => Box::new(level_zero::LevelZero::load()?),
            Kind::Neuron => Box::new(neuron::Neuron::load()?),
            Kind::SynapseAi => Box::new(synapse_ai::SynapseAi::load()?),
        };
        tracing::info!("loaded the runtime for {kind} memory: {}", kind.library());
        return Ok(&**cell.get_or_init(|| runtime));
    }
    loaded(kind).ok_or_else(|| Absent {
        kind,
        why: "its runtime was not loaded".into(),
    })
}
