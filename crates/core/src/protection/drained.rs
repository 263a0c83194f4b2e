//! What the end of a region, or a change of one, needs to know about the grants of a section.

use crate::protection::table::Protection;
use crate::sync::Ordering;

/// Only this crate may state that the section's grants have ended.
pub trait SectionDrained {
    /// Called when the section of this table has no earlier grants left.
    fn section_drained(&mut self, table: &Protection);
}

/// The section that a teardown waits for, if there was one when it began.
#[derive(Debug)]
pub(crate) struct Awaited<'a> {
    table: &'a Protection,
    section: bool,
}

impl<'a> Awaited<'a> {
    /// Reads whether the table has a section. Call it after the region has ended.
    #[inline]
    pub(crate) fn new(table: &'a Protection) -> Self {
        let section = table.has_section.load(Ordering::SeqCst);
        Self { table, section }
    }

    /// Whether no grant of a section is left to wait for.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        !self.section || self.is_dropped()
    }

    /// Whether the section was dropped. Dropping takes exclusive access, so all grants of the section have ended, too.
    #[cold]
    fn is_dropped(&self) -> bool {
        !self.table.has_section.load(Ordering::SeqCst)
    }

    #[inline]
    pub(crate) fn section_drained(&mut self, table: &Protection) {
        if std::ptr::eq(self.table, table) {
            self.section = false;
        }
    }
}
