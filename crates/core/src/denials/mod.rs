//! Denials: why an access was refused, as a value and as text.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`denial`] | a denial as a value, and as bytes for the peer |
//! | [`explain`], [`wording`] | its text with advice, and the parts of the sentences |

pub(crate) mod denial;
pub(crate) mod explain;
pub(crate) mod wording;
