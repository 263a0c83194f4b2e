//! The states of regions and windows, as tables: which events are legal in each state, and the states that they lead to.
//!
//! The code consults these tables; a test below compares them with a drawing. An event whose cell is empty is refused.

/// States of a region.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum RegionState {
    /// Created disabled: refuses every access.
    Disabled,
    /// Usable from the start.
    Live,
    /// Created disabled, then enabled: usable, and no endpoint or counter can be bound to it.
    Enabled,
    /// Refuses every access; freed when the earlier grants are dropped.
    Deregistering,
}

/// The events of a region.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum RegionEvent {
    /// `enable`.
    Enable,
    /// An endpoint or a counter is bound to the region.
    Bind,
    /// An access is granted.
    Access,
    /// A window is bound to the region.
    BindWindow,
    /// The region is deregistered (with no window, endpoint or counter bound to it).
    Deregister,
}

impl RegionState {
    const TABLE: [(Self, [Option<Self>; 5]); 4] = {
        use RegionState::{Deregistering, Disabled, Enabled, Live};
        [
            //          enable         bind            access         bind window    deregister
            (
                Disabled,
                [
                    Some(Enabled),
                    Some(Disabled),
                    None,
                    None,
                    Some(Deregistering),
                ],
            ),
            (
                Live,
                [
                    None,
                    Some(Live),
                    Some(Live),
                    Some(Live),
                    Some(Deregistering),
                ],
            ),
            (
                Enabled,
                [
                    None,
                    None,
                    Some(Enabled),
                    Some(Enabled),
                    Some(Deregistering),
                ],
            ),
            (Deregistering, [None, None, None, None, None]),
        ]
    };

    /// The next state after `event`, if it is legal.
    #[inline]
    pub(crate) const fn step(self, event: RegionEvent) -> Option<Self> {
        Self::TABLE[self as usize].1[event as usize]
    }
}

/// States of a window.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum WindowState {
    /// Names no memory.
    Unbound,
    /// Names part of a region.
    Bound,
    /// Deallocated.
    Deallocated,
}

/// The events of a window.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum WindowEvent {
    /// A bind to some bytes.
    Bind,
    /// A bind to no bytes.
    BindNothing,
    /// An invalidation, by the window's owner or a peer.
    Invalidate,
    /// The window's queue pair or region ends.
    Revoke,
    /// The window is deallocated.
    Deallocate,
}

impl WindowState {
    /// Windows whose keys the device chooses: type 1 and DAT.
    const DEVICE_KEYS: [(Self, [Option<Self>; 5]); 3] = {
        use WindowState::{Bound, Deallocated, Unbound};
        [
            //         bind         bind nothing   invalidate revoke       deallocate
            (
                Unbound,
                [
                    Some(Bound),
                    Some(Unbound),
                    None,
                    Some(Unbound),
                    Some(Deallocated),
                ],
            ),
            (
                Bound,
                [
                    Some(Bound),
                    Some(Unbound),
                    None,
                    Some(Unbound),
                    Some(Deallocated),
                ],
            ),
            (Deallocated, [None, None, None, None, None]),
        ]
    };

    /// Type 2: must be invalidated before the next bind. Invalidating twice is allowed.
    const TYPE2: [(Self, [Option<Self>; 5]); 3] = {
        use WindowState::{Bound, Deallocated, Unbound};
        [
            //         bind         nothing invalidate revoke      deallocate
            (
                Unbound,
                [
                    Some(Bound),
                    None,
                    Some(Unbound),
                    Some(Unbound),
                    Some(Deallocated),
                ],
            ),
            (
                Bound,
                [None, None, Some(Unbound), Some(Unbound), Some(Deallocated)],
            ),
            (Deallocated, [None, None, None, None, None]),
        ]
    };

    /// The next state of a window (of type 2 or not) after `event`, if it is legal.
    #[inline]
    pub(crate) const fn step(self, type2: bool, event: WindowEvent) -> Option<Self> {
        let table = if type2 {
            &Self::TYPE2
        } else {
            &Self::DEVICE_KEYS
        };
        table[self as usize].1[event as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Debug;

    fn draw<S: Debug + Copy + PartialEq, const N: usize>(
        width: usize,
        events: [&str; N],
        table: &[(S, [Option<S>; N])],
    ) -> String {
        let mut text = format!("{:width$}", "");
        text.extend(events.map(|event| format!("{event:width$}")));
        for (state, row) in table {
            text = text.trim_end().to_owned();
            text.push_str(&format!("\n{:width$}", format!("{state:?}")));
            for cell in row {
                let cell = cell.map_or("-".to_owned(), |to| format!("{to:?}"));
                text.push_str(&format!("{cell:width$}"));
            }
        }
        text.trim_end().to_owned()
    }

    #[test]
    fn region_state_transitions_match_the_expected_table() {
        let events = ["enable", "bind", "access", "bind window", "deregister"];
        let expected =
            "              enable        bind          access        bind window   deregister
Disabled      Enabled       Disabled      -             -             Deregistering
Live          -             Live          Live          Live          Deregistering
Enabled       -             -             Enabled       Enabled       Deregistering
Deregistering -             -             -             -             -";
        assert_eq!(draw(14, events, &RegionState::TABLE), expected);
        for (index, (state, _)) in RegionState::TABLE.iter().enumerate() {
            assert_eq!(*state as usize, index);
        }
    }

    #[test]
    fn window_state_transitions_match_the_expected_tables() {
        let events = ["bind", "nothing", "invalidate", "revoke", "deallocate"];
        let device = "            bind        nothing     invalidate  revoke      deallocate
Unbound     Bound       Unbound     -           Unbound     Deallocated
Bound       Bound       Unbound     -           Unbound     Deallocated
Deallocated -           -           -           -           -";
        assert_eq!(draw(12, events, &WindowState::DEVICE_KEYS), device);
        let type2 = "            bind        nothing     invalidate  revoke      deallocate
Unbound     Bound       -           Unbound     Unbound     Deallocated
Bound       -           -           Unbound     Unbound     Deallocated
Deallocated -           -           -           -           -";
        assert_eq!(draw(12, events, &WindowState::TYPE2), type2);
    }
}
