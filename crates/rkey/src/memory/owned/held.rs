//! An owned registered buffer: kept on the heap until its registration is closed.

use super::buffer::Buffer;
use super::registered::{CHANGING, Registered, RegistrationRequest};
use crate::device::domain::Domain;
use crate::error::{Error, Result};
use std::ptr::NonNull;

/// A buffer and its registration. The buffer lives on the heap, accessible only through a raw pointer, until the
/// registration is closed.
pub(crate) struct Owned<B: Buffer, M: AsRef<Registered>> {
    memory: M,
    /// From `Box::into_raw`; dangling only after `take`.
    buffer: NonNull<B>,
}

// SAFETY: Owned owns the B behind the pointer as a Box would, and hands out no reference to it.
unsafe impl<B: Buffer, M: AsRef<Registered> + Send> Send for Owned<B, M> {}
// SAFETY: through &Owned only `memory` can be reached, never the B.
unsafe impl<B: Buffer, M: AsRef<Registered> + Sync> Sync for Owned<B, M> {}

impl<B: Buffer, M: AsRef<Registered>> Owned<B, M> {
    /// Takes the buffer and registers it; `wrap` creates the accessors around the registration.
    pub(crate) fn register(
        domain: &Domain,
        wish: &RegistrationRequest,
        buffer: B,
        constant: bool,
        wrap: impl FnOnce(Registered) -> M,
    ) -> Result<Self> {
        if constant && wish.access.intersects(CHANGING) {
            return Err(Error::Rights("published memory can only be read".into()));
        }
        let buffer = NonNull::from(Box::leak(Box::new(buffer)));
        // SAFETY: it was just leaked, so it is valid and there is no other reference.
        let owner = unsafe { &mut *buffer.as_ptr() };
        let (kind, bytes) = (owner.kind(), owner.expose());
        // SAFETY: `Buffer` promises that the bytes stay valid at their address while the B is not used, and it is not
        // used until `release`, which comes after `close`.
        match unsafe { Registered::register(domain, wish, bytes, kind, constant) } {
            Ok(registered) => Ok(Self {
                memory: wrap(registered),
                buffer,
            }),
            Err(error) => {
                // SAFETY: from Box::leak above; nothing was registered.
                drop(unsafe { Box::from_raw(buffer.as_ptr()) });
                Err(error)
            }
        }
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// Deregisters the buffer and returns it.
    pub(crate) fn take(self) -> Result<B> {
        self.memory.as_ref().close()?;
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never used again, so `memory` is moved out exactly once.
        drop(unsafe { std::ptr::read(&raw const this.memory) });
        // SAFETY: from Box::leak; the buffer is deregistered, so the device does not access the bytes, and `this` is
        // never dropped, so the box is rebuilt only once.
        Ok(*unsafe { Box::from_raw(this.buffer.as_ptr()) })
    }

    /// The bytes, if nothing can change them.
    pub(crate) fn constant_bytes(&self) -> Option<&[u8]> {
        let registered = self.memory.as_ref();
        // SAFETY: a constant registration has no right by which the device writes (`register`
        // and `shared` see to it), refuses the owner's own stores, and (PrivateBuffer) no other process has the bytes mapped. The
        // result borrows from &self, so the buffer is neither taken nor dropped while it lives.
        registered.constant.then(|| unsafe {
            std::slice::from_raw_parts(registered.start.as_ptr(), registered.len)
        })
    }
}

impl<B: Buffer, M: AsRef<Registered>> Drop for Owned<B, M> {
    fn drop(&mut self) {
        if self.memory.as_ref().close().is_ok() {
            // SAFETY: from Box::leak, not taken (`take` forgets self), and the registration is closed, so the device no
            // longer accesses the bytes.
            drop(unsafe { Box::from_raw(self.buffer.as_ptr()) });
        }
        // While the registration is not closed, the device may still write to the buffer, so the buffer is leaked.
    }
}
