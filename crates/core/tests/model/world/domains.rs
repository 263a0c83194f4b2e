//! Requests about protection domains.

use super::World;
use crate::answers::core_no;

impl World {
    pub(crate) fn open_domain(&mut self) {
        let (core, model) = (self.core.create_domain(), self.model.open_domain());
        if let Some((id, _)) = self.same("open domain", (), core, core_no, model) {
            self.domains.push(id);
        }
    }

    pub(super) fn close_domain(&mut self) {
        let Some((number, id)) = self.some_domain() else {
            return;
        };
        let (core, model) = (self.core.close_domain(id), self.model.close_domain(number));
        self.same("close domain", number, core, core_no, model);
    }
}
