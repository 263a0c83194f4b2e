//! The engine of a device.

use rkey_base::memory::ProcessMemory;
use rkey_engine::Engine;
use rkey_link::AnyLink;

/// The engine, with this crate's types.
pub(crate) type DeviceEngine = Engine<AnyLink, ProcessMemory>;
