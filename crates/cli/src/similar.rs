//! Finds the name that a mistyped name was probably meant to be.

/// The value of the name closest to `given`, if any is close enough.
pub(crate) fn closest<'a, T>(
    given: &str,
    known: impl IntoIterator<Item = (&'a str, T)>,
) -> Option<T> {
    // One typing error in a short name, two in a longer one.
    let slips = if given.len() < 5 { 1 } else { 2 };
    known
        .into_iter()
        .map(|(name, value)| (strsim::osa_distance(given, name), value))
        .filter(|(distance, _)| *distance <= slips)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_is_matched_and_another_word_is_not() {
        let known = ["write", "read", "atomic"].map(|name| (name, name));
        assert_eq!(closest("wrtie", known), Some("write"));
        assert_eq!(closest("raed", known), Some("read"));
        assert_eq!(closest("register", known), None);
        assert_eq!(closest("rat", known), None);
    }
}
