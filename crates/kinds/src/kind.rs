//! The kinds of memory that have a runtime.

use std::fmt;

/// A kind of accelerator memory, named by its runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// NVIDIA's CUDA driver.
    Cuda,
    /// AMD's ROCr (HSA).
    Rocr,
    /// Intel's oneAPI Level Zero.
    LevelZero,
    /// AWS Neuron.
    Neuron,
    /// Habana's SynapseAI.
    SynapseAi,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::Cuda,
        Self::Rocr,
        Self::LevelZero,
        Self::Neuron,
        Self::SynapseAi,
    ];

    /// The runtime's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cuda => "CUDA",
            Self::Rocr => "ROCr",
            Self::LevelZero => "Level Zero",
            Self::Neuron => "Neuron",
            Self::SynapseAi => "SynapseAI",
        }
    }

    /// The library that is loaded.
    #[must_use]
    pub const fn library(self) -> &'static str {
        match self {
            Self::Cuda => "libcuda.so.1",
            Self::Rocr => "libhsa-runtime64.so.1",
            Self::LevelZero => "libze_loader.so.1",
            Self::Neuron => "libnrt.so.1",
            Self::SynapseAi => "libSynapse.so",
        }
    }

    /// Whether the runtime can tell if an address is in its memory.
    #[must_use]
    pub const fn discovers(self) -> bool {
        matches!(self, Self::Cuda | Self::Rocr | Self::LevelZero)
    }

    /// Whether the runtime copies from its memory by address.
    #[must_use]
    pub const fn is_readable(self) -> bool {
        !matches!(self, Self::Neuron)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}
