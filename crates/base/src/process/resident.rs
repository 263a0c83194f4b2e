//! The memory that this process uses.

/// The resident memory of this process, in bytes, for tests and benchmarks. `None` if `/proc` is not mounted.
///
/// For `smaps_rollup`, the kernel counts the pages. The figures in `status` and `statm` omit what each processor has not yet added to
/// the sum: megabytes on large machines. `status` is for kernels without `smaps_rollup`.
#[must_use]
pub fn resident() -> Option<u64> {
    let files = ["smaps_rollup", "status"].map(|file| format!("/proc/self/{file}"));
    files
        .iter()
        .filter_map(|file| std::fs::read_to_string(file).ok())
        .find_map(|text| bytes(&text))
}

fn bytes(text: &str) -> Option<u64> {
    let starts = |line: &&str| line.starts_with("Rss:") || line.starts_with("VmRSS:");
    let kib = text.lines().find(starts)?.split_ascii_whitespace().nth(1)?;
    Some(kib.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_written_becomes_resident() {
        const LEN: usize = 64 << 20;
        let before = resident().unwrap();
        let buffer = vec![1u8; LEN];
        let grown = resident().unwrap() - before;
        // Other tests of this process may free some of theirs.
        assert!(grown > LEN as u64 / 2, "{grown}");
        assert_eq!(std::hint::black_box(&buffer)[LEN - 1], 1);
    }

    #[test]
    fn both_files_have_the_figure() {
        assert_eq!(
            bytes("55-7f ---p 0 00:00 0 [rollup]\nRss:  12 kB\nPss: 3 kB"),
            Some(12 << 10)
        );
        assert_eq!(bytes("VmHWM: 9 kB\nVmRSS:\t    7 kB\n"), Some(7 << 10));
        assert_eq!(bytes("VmHWM: 9 kB\n"), None);
    }
}
