//! Node and service names that count up (`fi_av_insertsym`).

/// The name with its trailing number increased: `node7` by 2 is `node9`, `10.0.0.1` by 2 is `10.0.0.3`.
pub(super) fn counted_up(name: &str, by: usize) -> String {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = &name[stem.len()..];
    match digits.parse::<u64>() {
        Ok(number) if by > 0 => {
            let width = if digits.starts_with('0') {
                digits.len()
            } else {
                0
            };
            format!("{stem}{:0width$}", number.saturating_add(by as u64))
        }
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_at_the_end_of_a_name_is_counted_up() {
        assert_eq!(counted_up("node07", 3), "node10");
        assert_eq!(counted_up("10.0.0.1", 2), "10.0.0.3");
        assert_eq!(counted_up("localhost", 2), "localhost");
        assert_eq!(counted_up("7471", 0), "7471");
    }
}
