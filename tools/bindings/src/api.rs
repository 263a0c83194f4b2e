//! Describes the generated files of one front end, as data.

/// One front end: its headers, the types and numbers that it needs, and their names.
pub struct Api {
    /// The directory of the generated files, from the repository's root.
    pub folder: &'static str,
    /// What the first lines of the generated files name as their source.
    pub source: &'static str,
    /// The package whose version the command in `asks` prints.
    pub package: &'static str,
    /// The command that says which version of the package is installed.
    pub asks: &'static [&'static str],
    /// The first characters of the package's version.
    pub version: &'static str,
    /// The headers.
    pub headers: &'static [&'static str],
    /// Structures and enumerations, as C names them (regular expressions). Types that they refer to are included.
    pub types: &'static [&'static str],
    /// Macros and constants of enumerations without a name (regular expressions).
    pub constants: &'static [&'static str],
    /// Types that are not generated, and their replacements.
    pub opaque: &'static [(&'static str, &'static str)],
    /// Types that are not needed once the opaque ones are gone (regular expressions).
    pub unwanted: &'static [&'static str],
    /// Prefix of types that our names leave out.
    pub type_prefix: &'static str,
    /// Prefix of `typedef`s that become names in Rust's spelling; empty if they keep their names.
    pub alias_prefix: &'static str,
    /// Prefix of constants that our names leave out.
    pub constant_prefix: &'static str,
    /// Types whose name does not follow from the C name. Two types with the same name must be equal, and become one.
    pub names: &'static [(&'static str, &'static str)],
    /// Integer types of enumerations; others are `c_int`.
    pub enums: &'static [(&'static str, &'static str)],
    /// Types of constants by the beginning of their name (the first match counts); other macros are `u64`.
    pub constant_types: &'static [(&'static str, &'static str)],
    /// Lists of all constants of an enumeration: the list and the enumeration.
    pub lists: &'static [(&'static str, &'static str)],
    /// Traits that types derive besides `Clone` and `Copy`.
    pub derives: &'static [(&'static str, &'static [&'static str])],
    /// Fields under another name: type, field, our name.
    pub fields: &'static [(&'static str, &'static str, &'static str)],
    /// Fields of another type with the same layout: type, field, our type.
    pub field_types: &'static [(&'static str, &'static str, &'static str)],
    /// Flexible arrays at the end, which are omitted.
    pub dropped_fields: &'static [(&'static str, &'static str)],
    /// The beginning of the names of structures in which no function pointer may be null.
    pub complete_tables: &'static [&'static str],
    /// The fields that later versions added, in Rust, under their C names: see `shape`.
    pub later: &'static str,
}

/// Asks pkg-config for a version.
pub const PKG_CONFIG: &[&str] = &["pkg-config", "--modversion"];

impl Api {
    /// The C file that includes the headers.
    pub fn includes(&self) -> String {
        let include = |header| format!("#include <{header}>\n");
        self.headers.iter().map(include).collect()
    }
}
