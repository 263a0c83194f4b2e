//! The earliest of several deadlines. A connection looks for it after each packet.

/// The earlier of two deadlines, of which either may be missing.
#[inline]
pub(super) fn earlier(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        _ => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earlier_deadline_is_found_if_there_is_one() {
        assert_eq!(earlier(None, None), None);
        assert_eq!(earlier(Some(1), None), Some(1));
        assert_eq!(earlier(None, Some(u64::MAX)), Some(u64::MAX));
        assert_eq!(earlier(Some(1), Some(2)), Some(1));
        assert_eq!(earlier(Some(2), Some(1)), Some(1));
    }
}
