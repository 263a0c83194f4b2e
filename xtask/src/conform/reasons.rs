//! Why clauses are not shown: those that do not apply, and those that are open. The reason of a clause that is shown in part says
//! what is missing.

const HEADER: &str = "a function of libfabric's own header, in which the provider has no part";
const NO_BEHAVIOUR: &str = "says nothing about behaviour";
const AT_ONCE: &str =
    "registration is complete when the call returns, so it neither fails nor writes `*mr` later";
const EXACT: &str = "a permission that is not used: rights are enforced exactly";

/// Clauses that require nothing here.
const NOT_APPLICABLE: &[(&str, &str)] = &[
    ("FI-014", HEADER),
    (
        "FI-032",
        "a permission that is not used: the transfer ends with an error, which \
        `buffers_that_are_not_mapped_are_an_error` shows",
    ),
    (
        "FI-063",
        "a permission that is not used: pages that are replaced are found, which \
        `with_allocated_pages_that_are_replaced_all_the_same_are_found` shows",
    ),
    (
        "DA-031",
        "a permission that is not used: privileges must match, which `needs_local_privileges` shows",
    ),
    (
        "DA-037",
        "a permission: `may_be_sent_behind_its_fence` shows the result",
    ),
    ("DA-038", "promises nothing about other endpoints"),
    ("FI-103", EXACT),
    ("FI-107", "what a descriptor holds cannot be seen"),
    ("FI-132", HEADER),
    ("FI-134", HEADER),
    (
        "FI-139",
        "a permission that is not used: pages of other sizes work, which \
        `pages_may_have_any_size_whatever_was_said` shows",
    ),
    (
        "FI-192",
        "a permission that is not used: local access goes on",
    ),
    ("FI-193", "refresh is supported"),
    ("FI-205", AT_ONCE),
    ("FI-221", NO_BEHAVIOUR),
    ("FI-222", NO_BEHAVIOUR),
    ("FI-262", NO_BEHAVIOUR),
    ("FI-268", "the title of a page; FI-178 has its substance"),
    ("FI-270", EXACT),
    ("FI-272", NO_BEHAVIOUR),
    ("FI-273", NO_BEHAVIOUR),
    ("FI-I03", AT_ONCE),
    ("FI-I31", HEADER),
];

const FAKES: &str = "no test on a real accelerator";

/// Clauses that are open, and what is missing where only a part is shown.
const OPEN: &[(&str, &str)] = &[
    (
        "DA-I12",
        "the source of a send or RDMA write needs no local read: `dtest` sends from memory without it",
    ),
    ("FI-244", FAKES),
    ("FI-245", FAKES),
    ("FI-246", FAKES),
    ("FI-I48", "optional, of later versions; not built"),
];

/// Why a clause does not apply, if it does not.
pub(super) fn not_applicable(id: &str) -> Option<&'static str> {
    in_list(NOT_APPLICABLE, id)
}

/// Why a clause is open, or what is missing if a part of it is shown, if it has its own reason.
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
    fn a_clause_has_one_reason() {
        let mut ids: Vec<&str> = NOT_APPLICABLE
            .iter()
            .chain(OPEN)
            .map(|(id, _)| *id)
            .collect();
        ids.sort_unstable();
        assert!(ids.windows(2).all(|two| two[0] != two[1]), "{ids:?}");
    }
}
