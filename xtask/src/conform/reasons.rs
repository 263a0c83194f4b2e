//! Why clauses are not proved: those that do not apply, and those that are open. For a clause that is proved in part, the reason says
//! what is missing.

const HEADER: &str = "a function in libfabric's own header, which does not involve the provider";
const NO_BEHAVIOUR: &str = "says nothing about behaviour";
const AT_ONCE: &str =
    "registration is complete when the call returns, so it neither fails nor writes `*mr` later";
const EXACT: &str = "an unused permission: rights are enforced exactly";

/// Clauses that require nothing of rkey.
const NOT_APPLICABLE: &[(&str, &str)] = &[
    ("FI-014", HEADER),
    (
        "FI-032",
        "an unused permission: the transfer ends with an error, as \
        `a_transfer_with_an_unmapped_buffer_fails` shows",
    ),
    (
        "FI-063",
        "an unused permission: replaced pages are found, as \
        `with_allocated_pages_that_are_replaced_all_the_same_are_found` shows",
    ),
    (
        "DA-031",
        "an unused permission: privileges must match, as `a_bind_needs_local_privileges` shows",
    ),
    (
        "DA-037",
        "a permission: `a_context_may_be_sent_after_its_bind` shows the result",
    ),
    ("DA-038", "promises nothing about other endpoints"),
    ("FI-103", EXACT),
    ("FI-107", "the contents of a descriptor are opaque"),
    ("FI-132", HEADER),
    ("FI-134", HEADER),
    (
        "FI-139",
        "an unused permission: pages of other sizes work, as \
        `pages_may_have_any_size_whatever_was_said` shows",
    ),
    (
        "FI-192",
        "an unused permission: local access continues to work",
    ),
    ("FI-193", "refresh is supported"),
    ("FI-205", AT_ONCE),
    ("FI-221", NO_BEHAVIOUR),
    ("FI-222", NO_BEHAVIOUR),
    ("FI-262", NO_BEHAVIOUR),
    ("FI-268", "the title of a page; FI-178 states its content"),
    ("FI-270", EXACT),
    ("FI-272", NO_BEHAVIOUR),
    ("FI-273", NO_BEHAVIOUR),
    ("FI-I03", AT_ONCE),
    ("FI-I31", HEADER),
];

const FAKES: &str = "no test on a real accelerator";

/// Clauses that are open, and what is missing where only a part is proved.
const OPEN: &[(&str, &str)] = &[
    (
        "DA-I12",
        "the source of a send or RDMA write needs no local read: `dtest` sends from memory without it",
    ),
    ("FI-244", FAKES),
    ("FI-245", FAKES),
    ("FI-246", FAKES),
    (
        "FI-I48",
        "an optional feature of later versions, which rkey does not implement",
    ),
];

/// Why a clause does not apply; `None` if it does.
pub(super) fn not_applicable(id: &str) -> Option<&'static str> {
    in_list(NOT_APPLICABLE, id)
}

/// Why a clause is open, or what is missing if a part of it is proved; `None` without a reason of its own.
pub(super) fn of_open(id: &str) -> Option<&'static str> {
    in_list(OPEN, id)
}

fn in_list(list: &[(&str, &'static str)], id: &str) -> Option<&'static str> {
    let found = list.iter().find(|(clause, _)| *clause == id);
    found.map(|(_, reason)| *reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_clause_has_two_reasons() {
        let mut ids: Vec<&str> = NOT_APPLICABLE
            .iter()
            .chain(OPEN)
            .map(|(id, _)| *id)
            .collect();
        ids.sort_unstable();
        assert!(ids.windows(2).all(|two| two[0] != two[1]), "{ids:?}");
    }
}
