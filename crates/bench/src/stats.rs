//! Turns repetitions into a figure: median, best and worst, and percentiles of single operations.

use hdrhistogram::Histogram;

/// Repetitions of one measurement, in nanoseconds for one operation.
#[derive(Debug, Default)]
pub(crate) struct Repetitions {
    values: Vec<f64>,
    samples: Option<Histogram<u64>>,
}

impl Repetitions {
    /// Adds one repetition.
    pub(crate) fn push(&mut self, ns: f64) {
        self.values.push(ns);
    }

    /// Adds a repetition whose operations were timed one by one; its value is their median.
    pub(crate) fn push_samples(&mut self, samples: &Histogram<u64>) {
        self.values.push(samples.value_at_quantile(0.5) as f64);
        let fits = self
            .samples
            .as_mut()
            .is_some_and(|all| all.add(samples).is_ok());
        if !fits {
            self.samples = Some(samples.clone());
        }
    }

    /// Median, best, worst. All are zero if nothing was measured.
    pub(crate) fn summary(&self) -> (f64, f64, f64) {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        match (sorted.first(), sorted.get(sorted.len() / 2), sorted.last()) {
            (Some(&least), Some(&median), Some(&most)) => (median, least, most),
            _ => (0.0, 0.0, 0.0),
        }
    }

    /// The number of repetitions.
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.values.len()).unwrap_or(u32::MAX)
    }

    /// 99th percentile over all samples, if operations were timed one by one.
    pub(crate) fn p99(&self) -> Option<f64> {
        self.samples
            .as_ref()
            .map(|all| all.value_at_quantile(0.99) as f64)
    }
}

/// An empty histogram of nanoseconds: up to ten seconds, three digits.
pub(crate) fn histogram() -> Histogram<u64> {
    // The bounds are constants that the crate accepts: low at least 1, high at least twice low.
    let histogram = Histogram::new_with_bounds(1, 10_000_000_000, 3);
    histogram.unwrap_or_else(|_| Histogram::new(3).expect("three digits are allowed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_the_median_the_best_and_the_worst() {
        let mut repetitions = Repetitions::default();
        for value in [30.0, 10.0, 20.0] {
            repetitions.push(value);
        }
        assert_eq!(repetitions.summary(), (20.0, 10.0, 30.0));
        assert_eq!((repetitions.count(), repetitions.p99()), (3, None));
        assert_eq!(Repetitions::default().summary(), (0.0, 0.0, 0.0));
    }

    #[test]
    fn percentiles_are_computed_from_samples() {
        let mut samples = histogram();
        for ns in 1..=100 {
            samples.record(ns).expect("in bounds");
        }
        let mut repetitions = Repetitions::default();
        repetitions.push_samples(&samples);
        repetitions.push_samples(&samples);
        assert_eq!(repetitions.summary().0, 50.0);
        assert_eq!(repetitions.p99(), Some(99.0));
    }
}
