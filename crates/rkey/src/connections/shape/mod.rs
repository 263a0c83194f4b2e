//! The shape of a value as serde sees it: its types, in order.
//!
//! The wire format of messages is compact and not self-describing: the bytes of a string decode as a number without an
//! error. So the sender walks over the value, and the receiver watches the decoder, and both compute a hash of the
//! calls that serde makes: the types of all numbers and strings, where structs, sequences and enums begin and end, the
//! indices of variants. The hashes are equal if both programs use types of the same structure, as far as the value
//! reveals it: an empty `Vec<u32>` looks like an empty `Vec<String>`. `&str` and `String` have the same shape, as do all
//! types that serialise alike.
//!
//! Names do not matter. One type may have two names: `#[serde(try_from = "Unchecked")]` next to a derived `Serialize`
//! reads a struct under a different name than it writes, and `rename`, `remote` and manual implementations may do the
//! same. For the same reason a newtype has the shape of its content, a tuple struct that of a tuple, and a unit struct
//! that of `()`, as in JSON.
//!
//! The hash protects against mistakes, not forgery: a hostile peer can send any value of the expected type anyway.
//! This module limits what a hostile peer can do to the decoder: the nesting depth and the number of elements of a message.

mod reader;
mod writer;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The maximum length of the type description in a message, in bytes.
pub(crate) const TITLE: usize = 64;
/// The maximum nesting of structs, enums, sequences, options and the like in a message. Decoding recurses, and the
/// stack is finite.
const DEPTH: u32 = 128;
/// How many elements a message may have besides those that its bytes account for: `Vec<()>` needs no byte for an
/// element.
const FREE_STEPS: u64 = 1 << 16;
/// How many serde calls (for structs within structs) a byte may account for.
const STEPS_PER_BYTE: u64 = 64;

/// The shape of a value so far.
#[derive(Debug)]
pub(crate) struct Shape {
    hash: u64,
    depth: u32,
    steps: u64,
    limit: u64,
    /// The outermost type in words.
    title: String,
    /// Whether the title may grow.
    open: bool,
    /// The limit that was exceeded.
    problem: Option<Excess>,
}

/// A limit that a value exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Excess {
    #[error("it nests deeper than {DEPTH} levels")]
    Depth,
    #[error("it has too many elements for its bytes")]
    Steps,
}

impl Shape {
    /// The shape of a value to be sent, whose serialised form has `len` bytes.
    ///
    /// # Errors
    /// The value does not serialise, or the receiver would refuse it.
    pub(crate) fn of<T: Serialize + ?Sized>(value: &T, len: usize) -> Result<Self, String> {
        let mut shape = Self::new(len);
        value
            .serialize(writer::Writer(&mut shape))
            .map_err(|error| error.to_string())?;
        Ok(shape)
    }

    /// Decodes a value from bytes and returns its shape. All bytes must be used.
    pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> (Result<T, String>, Self) {
        let mut shape = Self::new(bytes.len());
        let mut decoder = postcard::Deserializer::from_bytes(bytes);
        let value = T::deserialize(reader::Reader::new(&mut decoder, &mut shape));
        let value = match (value, shape.problem) {
            (_, Some(excess)) => Err(excess.to_string()),
            (Err(error), None) => Err(error.to_string()),
            (Ok(value), None) => match decoder.finalize() {
                Ok([]) => Ok(value),
                Ok(rest) => Err(format!("{} B remain after the value", rest.len())),
                Err(error) => Err(error.to_string()),
            },
        };
        (value, shape)
    }

    fn new(len: usize) -> Self {
        Self {
            hash: 0xcbf2_9ce4_8422_2325,
            depth: 0,
            steps: 0,
            limit: FREE_STEPS + STEPS_PER_BYTE * len as u64,
            title: String::new(),
            open: true,
            problem: None,
        }
    }

    /// The hash of everything seen so far.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// The outermost type in words, at most [`TITLE`] bytes.
    pub(crate) fn title(&self) -> &str {
        &self.title
    }

    /// Adds a value without parts: a number, a string or a unit.
    fn leaf(&mut self, word: &str) -> Result<(), Excess> {
        self.name(word);
        self.mark(word)
    }

    /// Starts a value with parts; its first part continues the title.
    fn enter(&mut self, word: &str) -> Result<(), Excess> {
        self.say(word);
        self.deeper()?;
        self.mark(word)
    }

    /// Starts a value of a named type. The name appears only in the title.
    fn enter_named(&mut self, kind: &str, name: &str) -> Result<(), Excess> {
        self.name(name);
        self.enter(kind)
    }

    /// Starts a tuple. Its parts are left out of the title, which they would make too long.
    fn enter_tuple(&mut self, len: usize) -> Result<(), Excess> {
        self.say("tuple of");
        self.name(&len.to_string());
        self.enter("tuple")
    }

    /// Enters a newtype: only its content counts.
    fn enter_newtype(&mut self, name: &str) -> Result<(), Excess> {
        self.name(name);
        self.deeper()?;
        self.step()
    }

    /// Leaves the newtype that was entered last.
    fn leave_newtype(&mut self) {
        self.depth -= 1;
    }

    /// Leaves the value that was entered last.
    fn leave(&mut self) -> Result<(), Excess> {
        if self.open {
            self.leaf("nothing")?;
        }
        self.depth -= 1;
        self.mark("end")
    }

    fn deeper(&mut self) -> Result<(), Excess> {
        self.depth += 1;
        if self.depth > DEPTH {
            return self.exceeds(Excess::Depth);
        }
        Ok(())
    }

    /// Adds a word to the hash but not to the title.
    fn mark(&mut self, word: &str) -> Result<(), Excess> {
        // FNV-1a; the zero distinguishes "a", "bc" from "ab", "c".
        for byte in word.as_bytes().iter().chain(&[0]) {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.step()
    }

    fn step(&mut self) -> Result<(), Excess> {
        self.steps += 1;
        if self.steps > self.limit {
            return self.exceeds(Excess::Steps);
        }
        Ok(())
    }

    fn mark_number(&mut self, number: u64) -> Result<(), Excess> {
        self.hash = (self.hash ^ number).wrapping_mul(0x0100_0000_01b3);
        self.mark("")
    }

    fn exceeds(&mut self, excess: Excess) -> Result<(), Excess> {
        self.problem = Some(excess);
        Err(excess)
    }

    /// Adds the last word to the title.
    fn name(&mut self, word: &str) {
        self.say(word);
        self.open = false;
    }

    fn say(&mut self, word: &str) {
        if !self.open {
            return;
        }
        let space = if self.title.is_empty() { "" } else { " " };
        if self.title.len() + space.len() + word.len() <= TITLE {
            self.title.push_str(space);
            self.title.push_str(word);
        } else {
            self.open = false;
        }
    }
}

#[cfg(test)]
mod tests;
