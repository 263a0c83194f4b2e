//! The sender's half: a serialiser that writes nothing and records the shape.

use super::{Excess, Shape};
use serde::Serialize;
use serde::ser::{self, Serializer};

/// Records the values that are serialised into it.
pub(super) struct Writer<'s>(pub(super) &'s mut Shape);

/// Why a value has no shape.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    #[error(transparent)]
    Excess(#[from] Excess),
    #[error("{0}")]
    Custom(String),
}

impl ser::Error for WriteError {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Self::Custom(message.to_string())
    }
}

type Done = Result<(), WriteError>;

/// Methods for values without parts.
macro_rules! leaves {
    ($($method:ident($type:ty) = $word:literal;)*) => {
        $(fn $method(self, _: $type) -> Done {
            Ok(self.0.leaf($word)?)
        })*
    };
}

impl Writer<'_> {
    /// Adds a part of the entered value.
    fn part<T: Serialize + ?Sized>(&mut self, value: &T) -> Done {
        value.serialize(Writer(self.0))
    }

    /// The number of a variant.
    fn variant(&mut self, name: &str, index: u32, kind: &str) -> Done {
        self.0.enter_named("enum", name)?;
        self.0.mark_number(u64::from(index))?;
        Ok(self.0.mark(kind)?)
    }
}

impl Serializer for Writer<'_> {
    type Ok = ();
    type Error = WriteError;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    leaves! {
        serialize_bool(bool) = "bool";
        serialize_i8(i8) = "i8";
        serialize_i16(i16) = "i16";
        serialize_i32(i32) = "i32";
        serialize_i64(i64) = "i64";
        serialize_i128(i128) = "i128";
        serialize_u8(u8) = "u8";
        serialize_u16(u16) = "u16";
        serialize_u32(u32) = "u32";
        serialize_u64(u64) = "u64";
        serialize_u128(u128) = "u128";
        serialize_f32(f32) = "f32";
        serialize_f64(f64) = "f64";
        serialize_char(char) = "char";
        serialize_str(&str) = "string";
        serialize_bytes(&[u8]) = "bytes";
    }

    fn serialize_none(self) -> Done {
        Ok(self.0.leaf("none")?)
    }

    fn serialize_some<T: Serialize + ?Sized>(mut self, value: &T) -> Done {
        self.0.enter("some")?;
        self.part(value)?;
        Ok(self.0.leave()?)
    }

    fn serialize_unit(self) -> Done {
        Ok(self.0.leaf("unit")?)
    }

    fn serialize_unit_struct(self, name: &'static str) -> Done {
        self.0.name(name);
        self.serialize_unit()
    }

    fn serialize_unit_variant(mut self, name: &'static str, index: u32, _: &'static str) -> Done {
        self.variant(name, index, "unit")?;
        Ok(self.0.leave()?)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        mut self,
        name: &'static str,
        value: &T,
    ) -> Done {
        self.0.enter_newtype(name)?;
        self.part(value)?;
        self.0.leave_newtype();
        Ok(())
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        mut self,
        name: &'static str,
        index: u32,
        _: &'static str,
        value: &T,
    ) -> Done {
        self.variant(name, index, "newtype")?;
        self.part(value)?;
        Ok(self.0.leave()?)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self, WriteError> {
        self.0.enter("sequence of")?;
        Ok(self)
    }

    fn serialize_tuple(self, len: usize) -> Result<Self, WriteError> {
        self.0.enter_tuple(len)?;
        Ok(self)
    }

    fn serialize_tuple_struct(self, name: &'static str, _: usize) -> Result<Self, WriteError> {
        self.0.enter_named("tuple", name)?;
        Ok(self)
    }

    fn serialize_tuple_variant(
        mut self,
        name: &'static str,
        index: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self, WriteError> {
        self.variant(name, index, "tuple")?;
        Ok(self)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self, WriteError> {
        self.0.enter("map of")?;
        Ok(self)
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Self, WriteError> {
        self.0.enter_named("struct", name)?;
        Ok(self)
    }

    fn serialize_struct_variant(
        mut self,
        name: &'static str,
        index: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self, WriteError> {
        self.variant(name, index, "struct")?;
        Ok(self)
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// Implements serde's traits for compound values. Field names do not affect the shape, because serde accepts aliases for them.
macro_rules! parts {
    ($($trait:ident::$method:ident($($name:ty)?);)*) => {
        $(impl ser::$trait for Writer<'_> {
            type Ok = ();
            type Error = WriteError;

            fn $method<T: Serialize + ?Sized>(&mut self, $(_: $name,)? value: &T) -> Done {
                self.part(value)
            }

            fn end(self) -> Done {
                Ok(self.0.leave()?)
            }
        })*
    };
}

parts! {
    SerializeSeq::serialize_element();
    SerializeTuple::serialize_element();
    SerializeTupleStruct::serialize_field();
    SerializeTupleVariant::serialize_field();
    SerializeStruct::serialize_field(&'static str);
    SerializeStructVariant::serialize_field(&'static str);
}

impl ser::SerializeMap for Writer<'_> {
    type Ok = ();
    type Error = WriteError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Done {
        self.part(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Done {
        self.part(value)
    }

    fn end(self) -> Done {
        Ok(self.0.leave()?)
    }
}
