//! What the runtimes of accelerators report about memory, and the errors for memory that they refuse.

use crate::errno::{FiError, Result};
use rkey_device::base::{Copier, VaRange};
use rkey_kinds::{Kind, Refusal, discover};
use std::fmt::Arguments;

/// Logs why memory was refused, and returns the error.
#[cold]
pub(super) fn refuse(refusal: &Refusal) -> FiError {
    let error = match refusal {
        Refusal::Absent(_) => FiError::NOSYS,
        Refusal::NotReadable { .. } => FiError::OPNOTSUPP,
        Refusal::Failed { .. } => FiError::IO,
        _ => FiError::INVAL,
    };
    denied(error, format_args!("{refusal}"))
}

/// Logs the reason for an error, and returns the error.
#[cold]
pub(super) fn denied(error: FiError, why: Arguments<'_>) -> FiError {
    rkey_device::denials::refused(&format!("memory refused: {why}"));
    error
}

/// The copier of memory in one allocation of a runtime.
pub(super) fn hold_found(range: VaRange) -> Result<Copier> {
    let found = discover(range.start()).map_err(|refusal| refuse(&refusal))?;
    let copier = match &found {
        Some(found) => found.hold(range).map_err(|refusal| refuse(&refusal))?,
        None => None,
    };
    // The memory was freed since the caller found it.
    copier.map(Some).ok_or(FiError::FAULT)
}

/// The kind of accelerator memory, if the range is in one allocation.
pub(super) fn kind_of_one(range: VaRange) -> Result<Option<Kind>> {
    let found = discover(range.start()).map_err(|refusal| refuse(&refusal))?;
    Ok(found.filter(|it| it.contains(&range)).map(|it| it.kind()))
}
