//! Forking a program that has a device open.
//!
//! The child has the parent's handles but not its device: the child has no engine thread, does not map the rings, and does
//! not own the queue pair numbers. Every call on a handle in the child returns [`crate::DeviceError::Forked`]; dropping a
//! handle there does nothing. The parent does not notice. A child that needs RDMA opens its own device.
//!
//! All descriptors are closed on exec. A child that does not exec keeps copies of the parent's sockets; peers still see the end
//! of the parent, because they watch the process as well as the socket, and because the parent shuts its sockets down when it
//! closes them. The sockets of the connection manager and of the wire are closed in the child (`cm::fork`).

use crate::device::Device;

impl Device {
    /// Whether this process was forked from the one that opened the device, and so cannot use it.
    #[inline]
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.shared().lifecycle().is_forked()
    }
}
