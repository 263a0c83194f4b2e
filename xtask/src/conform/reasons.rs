//! Why clauses are open: in general for a section, and for single clauses where they have a reason of their own.

/// By the start of a section's title, the first that fits.
const SECTIONS: &[(&str, &str)] = &[
    ("FI 19.", "the registration cache is not built yet"),
    ("FI 8.", "device memory is not built yet"),
    ("FI 10b.", "device memory is not built yet"),
    (
        "FI 17.",
        "device memory is not built yet, so all is one domain",
    ),
    (
        "FI",
        "no test of the libfabric front end shows the rest yet",
    ),
    ("DA", "the uDAPL front end is not built yet"),
    (
        "X",
        "they compare three front ends, of which that of uDAPL is not built yet",
    ),
];

const HEADER: &str = "a function of libfabric's own header, in which the provider has no part";
const NO_BEHAVIOUR: &str = "says nothing about behaviour";
const DEVICE: &str = "is about device memory, which is not built yet";
const CACHE: &str = "is about the registration cache, which is not built yet";

/// By clause.
const CLAUSES: &[(&str, &str)] = &[
    ("FI-014", HEADER),
    ("FI-132", HEADER),
    ("FI-134", HEADER),
    ("FI-I31", HEADER),
    ("FI-048", "a permission that is not used: nothing is hidden"),
    ("FI-067", DEVICE),
    (
        "FI-084",
        "device memory is not built yet; `buffers_of_the_system` shows that other buffers need no descriptor",
    ),
    (
        "FI-085",
        "device memory is not built yet; `buffers_without_registration` shows that other buffers need a descriptor",
    ),
    ("FI-107", "what a descriptor holds cannot be seen"),
    ("FI-144", DEVICE),
    (
        "FI-192",
        "a permission that is not used: local access goes on",
    ),
    ("FI-205", "registration is complete when the call returns"),
    ("FI-218", DEVICE),
    ("FI-219", DEVICE),
    ("FI-252", "FI-253 says the opposite, and is kept (FI-261)"),
    ("FI-262", NO_BEHAVIOUR),
    ("FI-272", NO_BEHAVIOUR),
    ("FI-273", NO_BEHAVIOUR),
    (
        "FI-I03",
        "registration is complete when the call returns, so it never fails later",
    ),
    ("FI-I13", DEVICE),
    ("FI-I44", CACHE),
    ("FI-I45", CACHE),
    ("FI-I46", CACHE),
    ("FI-I47", CACHE),
    ("FI-I48", "optional, of later versions; not built"),
];

/// The reason of a section.
pub(super) fn of_section(title: &str) -> &'static str {
    SECTIONS
        .iter()
        .find(|(start, _)| title.starts_with(start))
        .map_or("no test yet", |(_, reason)| reason)
}

/// The reason of a clause that has one of its own.
pub(super) fn of_clause(id: &str) -> Option<&'static str> {
    let found = CLAUSES.iter().find(|(clause, _)| *clause == id);
    found.map(|(_, reason)| *reason)
}

/// Clauses with a reason for being open.
pub(super) fn explained() -> impl Iterator<Item = &'static str> {
    CLAUSES.iter().map(|(id, _)| *id)
}
