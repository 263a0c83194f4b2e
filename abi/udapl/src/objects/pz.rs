//! PZs (protection zones): domains of the device.

use crate::objects::ia::Ia;
use rkey_device::core::DomainId;
use rkey_kit::object::Users;
use std::sync::Arc;

/// A protection zone.
pub struct Pz {
    pub(crate) ia: Arc<Ia>,
    /// The handle of the PZ.
    pub handle: usize,
    /// The device's domain.
    pub domain: DomainId,
    /// EPs, LMRs, RMRs and SRQs in it.
    pub users: Users,
}

crate::kind!(
    Pz,
    HANDLE_TYPE_PZ,
    INVALID_HANDLE_PZ,
    RESOURCE_PROTECTION_DOMAIN,
    1 << 16
);

impl Pz {
    /// The IA that the object belongs to.
    #[must_use]
    pub fn ia(&self) -> &Arc<Ia> {
        &self.ia
    }

    /// Closes the PZ.
    ///
    /// # Errors
    /// `DAT_INVALID_STATE`.
    pub fn close(&self) -> crate::handles::fail::Result {
        Ok(self.ia.device.close_domain(self.domain)?)
    }
}
