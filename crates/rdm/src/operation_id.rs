//! Operations in flight, by number. A peer's answer names the operation by its number, and the number of an ended
//! operation is refused. The simplest operations are stored in their number itself.

/// Instead of an operation's number, this says that the completion belongs to no operation.
pub const UNTRACKED: u64 = u64::MAX;

/// An operation whose whole state fits into the 64-bit id of its work request, so nothing else is stored until it
/// completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain {
    /// The program's context.
    pub context: usize,
    /// The kind of operation.
    pub form: Form,
    /// Whether success is reported with an entry.
    pub report: bool,
}

/// The kinds of plain operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Sends a message without a tag.
    Message,
    /// Sends a message with a tag.
    Tagged,
    /// Reads the peer's memory.
    Read,
    /// Writes the peer's memory.
    Write,
}

impl Form {
    /// All kinds, by number.
    pub const ALL: [Self; 4] = [Self::Message, Self::Tagged, Self::Read, Self::Write];
}

const PLAIN: u64 = 1 << 63;
const PLAIN_REPORT: u64 = 1 << 62;
const CONTEXT_BITS: u32 = 56;

impl Plain {
    /// The id as a number; `None` if the context does not fit into 56 bits.
    #[inline]
    #[must_use]
    pub fn number(self) -> Option<u64> {
        let context = self.context as u64;
        let mut number = PLAIN | (self.form as u64) << CONTEXT_BITS | context;
        number |= if self.report { PLAIN_REPORT } else { 0 };
        (context >> CONTEXT_BITS == 0).then_some(number)
    }

    /// The plain operation with this number.
    #[inline]
    #[must_use]
    pub fn of(number: u64) -> Option<Self> {
        let form = number >> CONTEXT_BITS & 0x3f;
        Some(Self {
            context: (number & ((1 << CONTEXT_BITS) - 1)) as usize,
            form: *Form::ALL
                .get(form as usize)
                .filter(|_| number & PLAIN != 0)?,
            report: number & PLAIN_REPORT != 0,
        })
    }
}

/// Operations by number.
#[derive(Debug)]
pub struct Operations<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Operations<T> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Operations<T> {
    /// Adds an operation; returns its number.
    #[inline]
    pub fn add(&mut self, operation: T) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push((1, None));
            self.places.len() as u32 - 1
        });
        let (generation, place) = &mut self.places[index as usize];
        *place = Some(operation);
        u64::from(*generation) << 32 | u64::from(index)
    }

    /// The operation with this number.
    #[inline]
    pub fn get(&mut self, id: u64) -> Option<&mut T> {
        let (generation, place) = self.places.get_mut(id as u32 as usize)?;
        place
            .as_mut()
            .filter(|_| u64::from(*generation) == id >> 32)
    }

    /// Takes the operation with this number.
    #[inline]
    pub fn take(&mut self, id: u64) -> Option<T> {
        let (generation, place) = self.places.get_mut(id as u32 as usize)?;
        if u64::from(*generation) != id >> 32 {
            return None;
        }
        let operation = place.take()?;
        // The highest bit marks a `Plain` operation.
        *generation = generation.wrapping_add(1) & (u32::MAX >> 1);
        self.free.push(id as u32);
        Some(operation)
    }

    /// Takes all operations.
    pub fn drain(&mut self) -> Vec<T> {
        let places = std::mem::take(self).places.into_iter();
        places.filter_map(|(_, place)| place).collect()
    }

    /// The numbers of all operations for which `wanted` is true.
    pub fn all(&self, wanted: impl Fn(&T) -> bool) -> Vec<u64> {
        let numbered = self.places.iter().enumerate();
        numbered
            .filter(|(_, (_, place))| place.as_ref().is_some_and(&wanted))
            .map(|(index, (generation, _))| u64::from(*generation) << 32 | index as u64)
            .collect()
    }

    /// All operations.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(|(_, place)| place.as_ref())
    }

    /// The number of operations.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Whether there are none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_operations_are_encoded_in_their_numbers() {
        for form in Form::ALL {
            for report in [false, true] {
                let plain = Plain {
                    context: 0x0012_3456_789a_bcde,
                    form,
                    report,
                };
                let number = plain.number().unwrap();
                assert_eq!(Plain::of(number), Some(plain));
                assert!(Operations::<()>::default().get(number).is_none());
                let wide = Plain {
                    context: 1 << CONTEXT_BITS,
                    ..plain
                };
                assert_eq!(wide.number(), None);
            }
        }
        assert_eq!(Plain::of(UNTRACKED), None);
    }

    #[test]
    fn numbers_of_tracked_operations_are_not_those_of_plain_operations() {
        let mut operations = Operations::default();
        let first = operations.add(7);
        assert_eq!(Plain::of(first), None);
        operations.places[0].0 = u32::MAX >> 1;
        assert!(operations.get(first).is_none());
        let last = u64::from(u32::MAX >> 1) << 32;
        assert_eq!(Plain::of(last), None);
        assert_eq!(operations.take(last), Some(7));
        let next = operations.add(8);
        assert_eq!(
            (Plain::of(next), next),
            (None, 0),
            "generations do not wrap"
        );
    }

    #[test]
    fn a_number_names_only_one_operation() {
        let mut operations = Operations::default();
        let first = operations.add("first");
        assert_eq!(operations.get(first), Some(&mut "first"));
        assert_eq!(operations.take(first), Some("first"));
        let second = operations.add("second");
        assert_eq!(second as u32, first as u32, "the slot is not reused");
        assert!(operations.get(first).is_none() && operations.take(first).is_none());
        assert_eq!(operations.all(|it| *it == "second"), [second]);
        assert_eq!(
            operations.get(u64::from(u32::MAX)),
            None,
            "there is no such slot"
        );
        assert_eq!((operations.len(), operations.drain()), (1, vec!["second"]));
        assert!(operations.is_empty());
    }
}
