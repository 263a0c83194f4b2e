//! What is generated for one front end, as data.

/// One front end: which headers, which of their types and numbers, and the names that they get.
pub struct Api {
    /// The folder of the generated files, from the repository's root.
    pub folder: &'static str,
    /// What the files' headers name as the source.
    pub source: &'static str,
    /// The package as pkg-config knows it.
    pub package: &'static str,
    /// The beginning of its version.
    pub version: &'static str,
    /// The headers.
    pub headers: &'static [&'static str],
    /// Structures and enumerations, as C names them (regular expressions). What they refer to is included.
    pub types: &'static [&'static str],
    /// Macros and constants of enumerations without a name (regular expressions).
    pub constants: &'static [&'static str],
    /// Types that are not generated, and what stands for them.
    pub opaque: &'static [(&'static str, &'static str)],
    /// Types that are not needed once the opaque ones are gone (regular expressions).
    pub unwanted: &'static [&'static str],
    /// Prefix of types that our names leave out.
    pub type_prefix: &'static str,
    /// Prefix of constants that our names leave out.
    pub constant_prefix: &'static str,
    /// Types whose name does not follow from the C name. Two types of the same name have to be equal, and become one.
    pub names: &'static [(&'static str, &'static str)],
    /// Integer types of enumerations; others are `c_int`.
    pub enums: &'static [(&'static str, &'static str)],
    /// Types of constants by the beginning of their name, the first that fits; other macros are `u64`.
    pub constant_types: &'static [(&'static str, &'static str)],
    /// Lists of all constants of an enumeration: the list and the enumeration.
    pub lists: &'static [(&'static str, &'static str)],
    /// Traits that types derive besides `Clone` and `Copy`.
    pub derives: &'static [(&'static str, &'static [&'static str])],
    /// Fields under another name: type, field, our name.
    pub fields: &'static [(&'static str, &'static str, &'static str)],
    /// Fields of another type with the same layout: type, field, our type.
    pub field_types: &'static [(&'static str, &'static str, &'static str)],
    /// Flexible arrays at the end, which are left out.
    pub dropped_fields: &'static [(&'static str, &'static str)],
    /// Beginning of the names of structures in which no function pointer may be null.
    pub complete_tables: &'static [&'static str],
    /// What later versions added, in Rust, under the names of C: see `shape`.
    pub later: &'static str,
}

impl Api {
    /// The C file that includes the headers.
    pub fn includes(&self) -> String {
        let include = |header| format!("#include <{header}>\n");
        self.headers.iter().map(include).collect()
    }
}
